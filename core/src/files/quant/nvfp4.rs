//! NVFP4: four groups of 16 codes of E2M1, each with a scale of E4M3 without a sign; byte j of a group holds elements j
//! (low) and j + 8 (high). A factor for the whole tensor may lie beside it.

use super::each_block;
use super::mxfp4::HALVES;
use crate::files::dtype::Format;
use crate::files::packed::e4m3;

pub(super) const FORMAT: Format =
    Format { name: "NVFP4", gguf_id: Some(40), in_safetensors: false, block_elems: 64, block_bytes: 36, dequant };

/// The scale that is no number; it stands for zero.
const NO_NUMBER: u8 = 0x7f;

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 36], values: &mut [f32; 64]| {
        for (group, values) in values.chunks_exact_mut(16).enumerate() {
            let scale = match block[group] & 0x7f {
                NO_NUMBER => 0.0,
                scale => e4m3(scale) * 0.5,
            };
            for (j, byte) in block[4 + 8 * group..12 + 8 * group].iter().enumerate() {
                values[j] = scale * HALVES[usize::from(byte & 15)];
                values[j + 8] = scale * HALVES[usize::from(byte >> 4)];
            }
        }
    });
}
