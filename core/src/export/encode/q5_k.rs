//! Q5_K: super-blocks with codes of five bits; bit j of the l-th high byte is the fifth of element l of group j.

use super::{each, super_blocks};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 256]| {
        let coded = super_blocks::code(block, 31.0);
        out.extend(coded.head);
        let high = |l: usize| (0..8).fold(0u8, |byte, j| byte | (coded.codes[32 * j + l] >> 4) << j);
        out.extend((0..32).map(high));
        super_blocks::nibbles(&coded.codes, out);
    });
}
