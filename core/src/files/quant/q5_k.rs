//! Q5_K: as Q4_K, with a fifth bit for each element: bit j of byte l belongs to element l of group j.

use super::k_scales::scale_min;
use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "Q5_K", gguf_id: Some(13), in_safetensors: false, block_elems: 256, block_bytes: 176, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 176], values: &mut [f32; 256]| {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let scales = block[4..].first_chunk().expect("a block is longer");
        let (fifth, nibbles) = (&block[16..48], &block[48..]);
        for (j, group) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scale_min(scales, j);
            let (scale, min) = (d * scale, dmin * min);
            for (l, value) in group.iter_mut().enumerate() {
                let q = nibbles[32 * (j / 2) + l] >> (4 * (j % 2)) & 15 | (fifth[l] >> j & 1) << 4;
                *value = scale * f32::from(q) - min;
            }
        }
    });
}
