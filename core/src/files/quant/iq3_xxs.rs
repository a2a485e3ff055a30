//! IQ3_XXS: groups of 32, each eight codes for four magnitudes, and apart a word of 4 × 7 signs and a 4-bit scale.

use super::{each_block, half_at, iq_codes, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ3_XXS", gguf_id: Some(18), in_safetensors: false, block_elems: 256, block_bytes: 98, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 98], values: &mut [f32; 256]| {
        let (d, codes, words) = (half_at(block, 0), &block[2..66], block[66..].as_chunks::<4>().0);
        for (group, (values, word)) in values.chunks_exact_mut(32).zip(words).enumerate() {
            let word = u32::from_le_bytes(*word);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            for (i, values) in values.chunks_exact_mut(4).enumerate() {
                let entry = iq_grids::IQ3_XXS[usize::from(codes[8 * group + i])];
                let signs = iq_codes::signs(word >> (7 * (i / 2))) >> (4 * (i % 2));
                iq_codes::four(values, scale, entry, &iq_codes::IQ3_XXS, signs);
            }
        }
    });
}
