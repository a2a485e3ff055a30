//! Super-blocks of 256 with scales and minimums: for each of eight groups of 32 both are searched, rounded to 6 bits
//! under the super-block's half-precision pair, and the codes are chosen for the rounded ones.

use super::{half, search};

/// The sixteen bytes that begin a block, and its codes.
pub(super) struct Coded {
    pub(super) head: [u8; 16],
    pub(super) codes: [u8; 256],
}

/// Codes `0 ..= levels` for a super-block.
pub(super) fn code(block: &[f32; 256], levels: f32) -> Coded {
    let groups = block.as_chunks::<32>().0;
    let mut scales = [0f32; 8];
    let mut minimums = [0f32; 8];
    for (j, group) in groups.iter().enumerate() {
        (scales[j], minimums[j]) = search::with_minimum(group, levels);
    }
    let ((d_bytes, d), mut scale_codes) = six_bits(&scales);
    let ((dmin_bytes, dmin), mut minimum_codes) = six_bits(&minimums);
    for (j, group) in groups.iter().enumerate() {
        let units = (d, dmin);
        (scale_codes[j], minimum_codes[j]) = refined(group, units, (scale_codes[j], minimum_codes[j]), levels);
    }
    let mut head = [0; 16];
    head[..2].copy_from_slice(&d_bytes);
    head[2..4].copy_from_slice(&dmin_bytes);
    head[4..].copy_from_slice(&packed(&scale_codes, &minimum_codes));
    let mut codes = [0u8; 256];
    for (j, group) in groups.iter().enumerate() {
        let (scale, minimum) = (d * f32::from(scale_codes[j]), dmin * f32::from(minimum_codes[j]));
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (code, value) in codes[32 * j..].iter_mut().zip(group) {
            *code = ((value + minimum) * inverse).round_ties_even().clamp(0.0, levels) as u8;
        }
    }
    Coded { head, codes }
}

/// The codes of scale and minimum among those next to `codes` with the least error: what was best before rounding need
/// not be best after it.
fn refined(group: &[f32; 32], (d, dmin): (f32, f32), codes: (u8, u8), levels: f32) -> (u8, u8) {
    let weights = search::weights(group);
    let mut best = (f32::INFINITY, codes);
    for scale in codes.0.saturating_sub(1)..=(codes.0 + 1).min(63) {
        for minimum in codes.1.saturating_sub(1)..=(codes.1 + 1).min(63) {
            let found = search::error(group, &weights, d * f32::from(scale), -dmin * f32::from(minimum), levels);
            if found < best.0 {
                best = (found, (scale, minimum));
            }
        }
    }
    best.1
}

/// The low four bits of each pair of groups, two in a byte.
pub(super) fn nibbles(codes: &[u8; 256], out: &mut Vec<u8>) {
    for pair in codes.as_chunks::<64>().0 {
        out.extend((0..32).map(|l| (pair[l] & 15) | (pair[l + 32] & 15) << 4));
    }
}

/// Values at least 0 as 6-bit codes of a half-precision unit.
fn six_bits(values: &[f32; 8]) -> (([u8; 2], f32), [u8; 8]) {
    let largest = values.iter().copied().fold(0f32, f32::max);
    let unit = half(largest / 63.0);
    let inverse = if unit.1 > 0.0 { 1.0 / unit.1 } else { 0.0 };
    (unit, values.map(|value| (value * inverse).round().clamp(0.0, 63.0) as u8))
}

/// Eight scales and eight minimums of 6 bits in twelve bytes: four whole of each, whose upper bits hold those of the rest.
fn packed(scales: &[u8; 8], minimums: &[u8; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    for j in 0..4 {
        out[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        out[j + 4] = minimums[j] | (minimums[j + 4] >> 4) << 6;
        out[j + 8] = (scales[j + 4] & 15) | (minimums[j + 4] & 15) << 4;
    }
    out
}
