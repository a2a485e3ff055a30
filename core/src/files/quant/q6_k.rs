//! Q6_K: 6-bit values around 32 in groups of 16 with signed byte scales, under one half-precision scale at the end.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q6_K", gguf_id: Some(14), in_safetensors: false, block_elems: 256, block_bytes: 210, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 210], values: &mut [f32; 256]| {
        let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = half_at(block, 208);
        for (e, value) in values.iter_mut().enumerate() {
            // Each half of 128 elements is four quarters of 32, of which two share a byte of `low` and all four
            // share a byte of `high`.
            let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
            let nibble = low[64 * half + 32 * (quarter & 1) + l] >> (4 * (quarter / 2)) & 15;
            let q = nibble | (high[32 * half + l] >> (2 * quarter) & 3) << 4;
            *value = d * f32::from(scales[e / 16] as i8) * (f32::from(q) - 32.0);
        }
    });
}
