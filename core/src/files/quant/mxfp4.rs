//! MXFP4: a power of two as its biased exponent and 32 codes of E2M1 (Open Compute Project, microscaling formats);
//! byte j holds elements j (low) and j + 16 (high).

use super::each_block;
use crate::files::dtype::Format;
use crate::files::packed::{E2M1, e8m0};

pub(super) const FORMAT: Format =
    Format { name: "MXFP4", gguf_id: Some(39), in_safetensors: false, block_elems: 32, block_bytes: 17, dequant };

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 17], values: &mut [f32; 32]| {
        let scale = e8m0(block[0]);
        for (j, byte) in block[1..].iter().enumerate() {
            values[j] = scale * E2M1[usize::from(byte & 15)];
            values[j + 16] = scale * E2M1[usize::from(byte >> 4)];
        }
    });
}
