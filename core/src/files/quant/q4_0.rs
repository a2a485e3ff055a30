//! Q4_0: a half-precision scale and 32 nibbles around 8; byte j holds elements j (low) and j + 16 (high).

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q4_0", gguf_id: Some(2), in_safetensors: false, block_elems: 32, block_bytes: 18, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], values: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for (j, byte) in block[2..].iter().enumerate() {
            values[j] = d * (f32::from(byte & 15) - 8.0);
            values[j + 16] = d * (f32::from(byte >> 4) - 8.0);
        }
    });
}
