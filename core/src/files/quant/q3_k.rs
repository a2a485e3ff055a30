//! Q3_K: 3-bit values around 4 (the high bit apart) in groups of 16 with 6-bit scales around 32.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q3_K", gguf_id: Some(11), in_safetensors: false, block_elems: 256, block_bytes: 110, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 110], values: &mut [f32; 256]| {
        let (high, bits, scales) = (&block[..32], &block[32..96], &block[96..108]);
        let d = half_at(block, 108);
        for (e, value) in values.iter_mut().enumerate() {
            let (half, plane, l) = (e / 128, e % 128 / 32, e % 32);
            let q = bits[32 * half + l] >> (2 * plane) & 3 | (high[l] >> (4 * half + plane) & 1) << 2;
            *value = d * scale(scales, e / 16) * (f32::from(q) - 4.0);
        }
    });
}

fn scale(packed: &[u8], i: usize) -> f32 {
    let low = packed[i % 8] >> (4 * (i / 8)) & 15;
    let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    f32::from(low | high << 4) - 32.0
}
