//! IQ3_S: 9-bit codes for four magnitudes (the high bit apart), all signs; 4-bit scales of 32 elements.

use super::{each_block, half_at, iq_codes, iq_grids};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ3_S", gguf_id: Some(21), in_safetensors: false, block_elems: 256, block_bytes: 110, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 110], values: &mut [f32; 256]| {
        let (d, low, high, signs, scales) =
            (half_at(block, 0), &block[2..66], &block[66..74], &block[74..106], &block[106..]);
        for (i, values) in values.chunks_exact_mut(4).enumerate() {
            let scale = d * (1.0 + 2.0 * f32::from(scales[i / 16] >> (i / 8 % 2 * 4) & 15));
            let code = usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
            let signs = signs[i / 2] >> (4 * (i % 2));
            iq_codes::four(values, scale, iq_grids::IQ3_S[code], &iq_codes::IQ3_S, signs);
        }
    });
}
