//! MXFP4: a power of two as its biased exponent and 32 codes of E2M1 (Open Compute Project, microscaling formats);
//! byte j holds elements j (low) and j + 16 (high).

use super::each_block;
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "MXFP4", gguf_id: Some(39), in_safetensors: false, block_elems: 32, block_bytes: 17, dequant };

/// Twice the values of the sixteen codes, as ggml has them: there is one zero.
pub(super) const HALVES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Half of the power of two with this biased exponent. ggml has no value that is no number.
fn half_power(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 17], values: &mut [f32; 32]| {
        let scale = half_power(block[0]);
        for (j, byte) in block[1..].iter().enumerate() {
            values[j] = scale * HALVES[usize::from(byte & 15)];
            values[j + 16] = scale * HALVES[usize::from(byte >> 4)];
        }
    });
}
