//! IQ2_XXS: groups of 32, each four codes for eight magnitudes, and a word of 4 × 7 signs and a 4-bit scale.

use super::{each_block, half_at, iq_codes, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ2_XXS", gguf_id: Some(16), in_safetensors: false, block_elems: 256, block_bytes: 66, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 66], values: &mut [f32; 256]| {
        let d = half_at(block, 0);
        for (values, group) in values.chunks_exact_mut(32).zip(block[2..].as_chunks::<8>().0) {
            let word = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (i, values) in values.chunks_exact_mut(8).enumerate() {
                let entry = iq_grids::IQ2_XXS[usize::from(group[i])];
                iq_codes::eight(values, scale, entry, &iq_codes::IQ2, iq_codes::signs(word >> (7 * i)));
            }
        }
    });
}
