//! Q4_K: super-blocks with codes of four bits.

use super::{each, super_blocks};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 256]| {
        let coded = super_blocks::code(block, 15.0);
        out.extend(coded.head);
        super_blocks::nibbles(&coded.codes, out);
    });
}
