//! IQ2_S: 10-bit codes for eight magnitudes (the high bits apart), all eight signs; 4-bit scales of 16 elements.

use super::{each_block, half_at, iq_codes, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ2_S", gguf_id: Some(22), in_safetensors: false, block_elems: 256, block_bytes: 82, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 82], values: &mut [f32; 256]| {
        let (d, low, signs, high, scales) =
            (half_at(block, 0), &block[2..34], &block[34..66], &block[66..74], &block[74..]);
        for (i, values) in values.chunks_exact_mut(8).enumerate() {
            let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
            let code = usize::from(low[i]) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
            iq_codes::eight(values, scale, iq_grids::IQ2_S[code], &iq_codes::IQ2, signs[i]);
        }
    });
}
