//! IQ4_XS: IQ4_NL's values in groups of 32 with 6-bit scales around 32, under a half-precision scale.

use super::iq4_nl::VALUES;
use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "IQ4_XS", gguf_id: Some(23), in_safetensors: false, block_elems: 256, block_bytes: 136, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 136], values: &mut [f32; 256]| {
        let d = half_at(block, 0);
        let (high, low, codes) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8], &block[8..]);
        for (group, (values, codes)) in values.chunks_exact_mut(32).zip(codes.chunks_exact(16)).enumerate() {
            let scale = low[group / 2] >> (4 * (group % 2)) & 15 | ((high >> (2 * group) & 3) as u8) << 4;
            let dl = d * (f32::from(scale) - 32.0);
            for (j, byte) in codes.iter().enumerate() {
                values[j] = dl * VALUES[usize::from(byte & 15)];
                values[j + 16] = dl * VALUES[usize::from(byte >> 4)];
            }
        }
    });
}
