//! Q5_0: codes -16 to 15, chosen as those of Q4_0.

use super::{each, half, search};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 32]| {
        let (scale, codes) = search::signed(block, 16);
        let codes = codes.map(|code| (code + 16) as u32);
        let high = codes.iter().enumerate().fold(0u32, |bits, (j, code)| bits | (code >> 4) << j);
        out.extend(half(scale).0);
        out.extend(high.to_le_bytes());
        out.extend((0..16).map(|j| (codes[j] & 15) as u8 | ((codes[j + 16] & 15) as u8) << 4));
    });
}
