//! IQ4_NL: a half-precision scale and 32 nibbles that name places on an uneven scale of values; byte j holds elements j
//! (low) and j + 16 (high).

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ4_NL", gguf_id: Some(20), in_safetensors: false, block_elems: 32, block_bytes: 18, dequant };

/// What the sixteen codes stand for, part of the format.
pub(super) const VALUES: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], values: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for (j, byte) in block[2..].iter().enumerate() {
            values[j] = d * VALUES[usize::from(byte & 15)];
            values[j + 16] = d * VALUES[usize::from(byte >> 4)];
        }
    });
}
