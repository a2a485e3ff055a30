//! Four bits around zero in groups along rows, packed into 32-bit words, with bf16 scales.

use super::{Encoder, Part, search};
use half::bf16;

/// Groups of this many columns.
pub(in super::super) struct Int4 {
    pub(in super::super) group: usize,
}

impl Encoder for Int4 {
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        if width == 0 || !width.is_multiple_of(self.group) {
            return None;
        }
        let groups = width / self.group;
        Some(vec![
            Part { suffix: ".weight_packed", dtype: "I32", shape: vec![rows, width / 8], step_bytes: width / 2 },
            Part { suffix: ".weight_scale", dtype: "BF16", shape: vec![rows, groups], step_bytes: 2 * groups },
        ])
    }

    fn encode(&self, _: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        for group in values.chunks_mut(self.group) {
            let scale = bf16::from_f32(search::signed_scale(group, 8).0);
            out[1].extend(scale.to_le_bytes());
            let scale = scale.to_f32();
            let mut codes = [0u8; 2];
            for (i, value) in group.iter_mut().enumerate() {
                let code = if scale == 0.0 { 0.0 } else { (*value / scale).round_ties_even().clamp(-8.0, 7.0) };
                *value = code * scale;
                codes[i % 2] = (code + 8.0) as u8;
                if i % 2 == 1 {
                    out[0].push(codes[0] | codes[1] << 4);
                }
            }
        }
    }
}
