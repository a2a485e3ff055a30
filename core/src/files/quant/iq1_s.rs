//! IQ1_S: 11-bit codes for eight of -1, 0, 1, moved by an eighth up or down; per 32 elements a word of the codes' high
//! bits, a 3-bit scale and the direction.

use super::{each_block, half_at, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ1_S", gguf_id: Some(19), in_safetensors: false, block_elems: 256, block_bytes: 50, dequant };

/// By how much values are moved.
pub(super) const DELTA: f32 = 0.125;

/// Eight values of an entry of two bits each, moved by `delta`, times `scale`.
pub(super) fn moved(out: &mut [f32], scale: f32, entry: u16, delta: f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * (f32::from(entry >> (2 * i) & 3) - 1.0 + delta);
    }
}

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 50], values: &mut [f32; 256]| {
        let (d, low, words) = (half_at(block, 0), &block[2..34], block[34..].as_chunks::<2>().0);
        for (i, values) in values.chunks_exact_mut(8).enumerate() {
            let word = u16::from_le_bytes(words[i / 4]);
            let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
            let delta = if word & 0x8000 == 0 { DELTA } else { -DELTA };
            let code = usize::from(low[i]) | usize::from(word >> (3 * (i % 4)) & 7) << 8;
            moved(values, scale, iq_grids::IQ1_S[code], delta);
        }
    });
}
