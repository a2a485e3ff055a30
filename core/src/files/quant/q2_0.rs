//! Q2_0: a half-precision scale and 64 codes of two bits around 1, in order.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q2_0", gguf_id: Some(42), in_safetensors: false, block_elems: 64, block_bytes: 18, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], values: &mut [f32; 64]| {
        let d = half_at(block, 0);
        for (e, value) in values.iter_mut().enumerate() {
            *value = d * (f32::from(block[2 + e / 4] >> (2 * (e % 4)) & 3) - 1.0);
        }
    });
}
