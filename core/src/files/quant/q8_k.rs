//! Q8_K: a single-precision scale and 256 signed bytes; sums of sixteen at the end, which the values do not need.

use super::each_block;
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q8_K", gguf_id: Some(15), in_safetensors: false, block_elems: 256, block_bytes: 292, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 292], values: &mut [f32; 256]| {
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (value, q) in values.iter_mut().zip(&block[4..260]) {
            *value = d * f32::from(*q as i8);
        }
    });
}
