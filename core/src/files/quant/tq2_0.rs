//! TQ2_0: -1, 0 or 1 (or 2) in two bits, planes of 32 elements; the scale at the end.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "TQ2_0", gguf_id: Some(35), in_safetensors: false, block_elems: 256, block_bytes: 66, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 66], values: &mut [f32; 256]| {
        let d = half_at(block, 64);
        for (e, value) in values.iter_mut().enumerate() {
            let q = block[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32)) & 3;
            *value = d * (f32::from(q) - 1.0);
        }
    });
}
