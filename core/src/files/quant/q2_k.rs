//! Q2_K: 2-bit values in groups of 16 with 4-bit scale and minimum, under a half-precision pair at the end.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q2_K", gguf_id: Some(10), in_safetensors: false, block_elems: 256, block_bytes: 84, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 84], values: &mut [f32; 256]| {
        let (scales, bits) = (&block[..16], &block[16..80]);
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (e, value) in values.iter_mut().enumerate() {
            let (half, shift, l) = (e / 128, 2 * (e % 128 / 32), e % 32);
            let q = bits[32 * half + l] >> shift & 3;
            let scale = scales[e / 16];
            *value = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
        }
    });
}
