//! Q4_1: a half-precision scale and minimum and 32 nibbles; byte j holds elements j (low) and j + 16 (high).

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q4_1", gguf_id: Some(3), in_safetensors: false, block_elems: 32, block_bytes: 20, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 20], values: &mut [f32; 32]| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (j, byte) in block[4..].iter().enumerate() {
            values[j] = d * f32::from(byte & 15) + m;
            values[j + 16] = d * f32::from(byte >> 4) + m;
        }
    });
}
