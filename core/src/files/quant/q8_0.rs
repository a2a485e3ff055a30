//! Q8_0: a half-precision scale and 32 signed bytes.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q8_0", gguf_id: Some(8), in_safetensors: false, block_elems: 32, block_bytes: 34, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 34], values: &mut [f32; 32]| {
        let d = half_at(block, 0);
        for (value, q) in values.iter_mut().zip(&block[2..]) {
            *value = d * f32::from(*q as i8);
        }
    });
}
