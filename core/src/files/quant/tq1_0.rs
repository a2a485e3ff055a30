//! TQ1_0: -1, 0 or 1, five to a byte as the leading digits of a fraction in base three; the scale at the end.

use super::{each_block, half_at};
use crate::files::dtype::Format;

pub(super) const FORMAT: Format =
    Format { name: "TQ1_0", gguf_id: Some(34), in_safetensors: false, block_elems: 256, block_bytes: 54, dequant };

/// Runs of bytes: where they begin, how many, digits of each. Elements go digit by digit over a run.
const RUNS: [(usize, usize, usize); 3] = [(0, 32, 5), (32, 16, 5), (48, 4, 4)];
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

fn dequant(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 54], values: &mut [f32; 256]| {
        let d = half_at(block, 52);
        let places = RUNS.iter().flat_map(|(start, count, digits)| {
            POWERS[..*digits].iter().flat_map(move |power| (0..*count).map(move |i| (start + i, *power)))
        });
        for (value, (at, power)) in values.iter_mut().zip(places) {
            let digit = (u16::from(block[at].wrapping_mul(power)) * 3) >> 8;
            *value = d * (f32::from(digit) - 1.0);
        }
    });
}
