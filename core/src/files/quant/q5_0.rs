//! Q5_0: a half-precision scale, the fifth bits of 32 elements, and their nibbles as in Q4_0; values around 16.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q5_0", gguf_id: Some(6), in_safetensors: false, block_elems: 32, block_bytes: 22, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 22], values: &mut [f32; 32]| {
        let d = half_at(block, 0);
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for (j, byte) in block[6..].iter().enumerate() {
            let low = u32::from(byte & 15) | (fifth >> j & 1) << 4;
            let high = u32::from(byte >> 4) | (fifth >> (j + 16) & 1) << 4;
            values[j] = d * (low as f32 - 16.0);
            values[j + 16] = d * (high as f32 - 16.0);
        }
    });
}
