//! Q8_1: Q8_0 with the sum of the block beside its scale, which the values do not need.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q8_1", gguf_id: Some(9), in_safetensors: false, block_elems: 32, block_bytes: 36, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 36], values: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for (value, q) in values.iter_mut().zip(&block[4..]) {
            *value = d * f32::from(*q as i8);
        }
    });
}
