//! Q8_0: the largest value of 32 becomes 127.

use super::{each, half};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 32]| {
        let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let (bytes, _) = half(largest / 127.0);
        // By the scale before it is rounded, as readers' own quantisers do it.
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        out.extend(bytes);
        out.extend(block.iter().map(|v| (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
    });
}
