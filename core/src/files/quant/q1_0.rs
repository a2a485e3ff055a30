//! Q1_0: a half-precision scale and 128 signs, a set bit for plus.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q1_0", gguf_id: Some(41), in_safetensors: false, block_elems: 128, block_bytes: 18, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], values: &mut [f32; 128]| {
        let d = half_at(block, 0);
        for (e, value) in values.iter_mut().enumerate() {
            *value = if block[2 + e / 8] >> (e % 8) & 1 == 1 { d } else { -d };
        }
    });
}
