//! Q5_1: a half-precision scale and minimum, the fifth bits of 32 elements, and their nibbles as in Q4_1.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q5_1", gguf_id: Some(7), in_safetensors: false, block_elems: 32, block_bytes: 24, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 24], values: &mut [f32; 32]| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        for (j, byte) in block[8..].iter().enumerate() {
            let low = u32::from(byte & 15) | (fifth >> j & 1) << 4;
            let high = u32::from(byte >> 4) | (fifth >> (j + 16) & 1) << 4;
            values[j] = d * low as f32 + m;
            values[j + 16] = d * high as f32 + m;
        }
    });
}
