//! IQ1_M: IQ1_S's values with a direction of every eight and a 3-bit scale of every sixteen; the half-precision scale is
//! in the upper nibbles of the four words of scales.

use super::iq1_s::{DELTA, moved};
use super::{each_block, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ1_M", gguf_id: Some(29), in_safetensors: false, block_elems: 256, block_bytes: 56, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 56], values: &mut [f32; 256]| {
        let (low, high) = (&block[..32], &block[32..48]);
        let words: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]]));
        let bits = words.iter().enumerate().fold(0, |bits, (i, word)| bits | word >> 12 << (4 * i));
        let d = half::f16::from_bits(bits).to_f32();
        for (i, values) in values.chunks_exact_mut(8).enumerate() {
            let scale = d * f32::from(2 * (words[i / 8] >> (3 * (i / 2 % 4)) & 7) + 1);
            let nibble = high[i / 2] >> (4 * (i % 2));
            let delta = if nibble & 8 == 0 { DELTA } else { -DELTA };
            moved(values, scale, iq_grids::IQ1_S[usize::from(low[i]) | usize::from(nibble & 7) << 8], delta);
        }
    });
}
