//! IQ2_XS: 16-bit words of a 9-bit code for eight magnitudes and 7 signs; 4-bit scales of 16 elements.

use super::{each_block, half_at, iq_codes, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ2_XS", gguf_id: Some(17), in_safetensors: false, block_elems: 256, block_bytes: 74, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 74], values: &mut [f32; 256]| {
        let (d, words, scales) = (half_at(block, 0), block[2..66].as_chunks::<2>().0, &block[66..]);
        for (i, (values, word)) in values.chunks_exact_mut(8).zip(words).enumerate() {
            let word = u16::from_le_bytes(*word);
            let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
            let entry = iq_grids::IQ2_XS[usize::from(word & 511)];
            iq_codes::eight(values, scale, entry, &iq_codes::IQ2, iq_codes::signs(u32::from(word >> 9)));
        }
    });
}
