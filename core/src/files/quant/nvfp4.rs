//! NVFP4: four groups of 16 codes of E2M1, each with a scale of E4M3 without a sign; byte j of a group holds elements j
//! (low) and j + 8 (high). A factor for the whole tensor may lie beside it.

use super::each_block;
use super::mxfp4::HALVES;
use crate::files::dtype::Format;
use crate::files::packed::e4m3;

pub(super) const FORMAT: Format =
    Format { name: "NVFP4", gguf_id: Some(40), in_safetensors: false, block_elems: 64, block_bytes: 36, dequant };

/// A scale's value: E4M3 whose sign does not count. Where that has no number, ggml reads zero, and with the sign bit set
/// what the exponent would give.
fn scale(byte: u8) -> f32 {
    match byte {
        0x7f => 0.0,
        0xff => 480.0,
        _ => e4m3(byte & 0x7f),
    }
}

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 36], values: &mut [f32; 64]| {
        for (group, values) in values.chunks_exact_mut(16).enumerate() {
            let scale = scale(block[group]) * 0.5;
            for (j, byte) in block[4 + 8 * group..12 + 8 * group].iter().enumerate() {
                values[j] = scale * HALVES[usize::from(byte & 15)];
                values[j + 8] = scale * HALVES[usize::from(byte >> 4)];
            }
        }
    });
}
