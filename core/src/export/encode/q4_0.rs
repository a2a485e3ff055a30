//! Q4_0: codes -8 to 7, the value of largest magnitude becomes -8, or the scale with less error near that.

use super::{each, half, search};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 32]| {
        let (scale, codes) = search::signed(block, 8);
        out.extend(half(scale).0);
        out.extend((0..16).map(|j| (codes[j] + 8) as u8 | ((codes[j + 16] + 8) as u8) << 4));
    });
}
