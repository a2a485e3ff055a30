//! E2M1 in groups along rows: MXFP4 with powers of two as scales, NVFP4 with E4M3 scales under a float for the tensor.

use super::{Encoder, Part, fp8};
use crate::files::{e4m3, e8m0};

/// Largest E2M1 number.
const LARGEST: f32 = 6.0;
/// Values of the eight codes without a sign.
const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Values halfway between them.
const BOUNDS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// The nearest code, ties to even.
fn code(value: f32) -> u8 {
    let magnitude = value.abs();
    let above = BOUNDS.iter().enumerate().filter(|(i, bound)| {
        // A bound itself belongs to the even one of its neighbours.
        magnitude > **bound || (magnitude == **bound && i % 2 == 1)
    });
    above.count() as u8 | if value.is_sign_negative() { 8 } else { 0 }
}

/// Codes of a group with this scale, and what they stand for.
fn group(values: &mut [f32], scale: f32, out: &mut Vec<u8>) {
    for pair in values.chunks_mut(2) {
        let mut byte = 0;
        for (i, value) in pair.iter_mut().enumerate() {
            let code = if scale == 0.0 { 0 } else { code(*value / scale) };
            byte |= code << (4 * i);
            let magnitude = VALUES[usize::from(code & 7)];
            *value = if code & 8 == 0 { magnitude } else { -magnitude } * scale;
        }
        out.push(byte);
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |m, v| m.max(v.abs()))
}

fn error(values: &[f32], scale: f32) -> f32 {
    let mut coded = values.to_vec();
    group(&mut coded, scale, &mut Vec::new());
    coded.iter().zip(values).map(|(c, v)| (c - v) * (c - v)).sum()
}

/// Groups of 32.
pub(in super::super) struct Mxfp4;

impl Encoder for Mxfp4 {
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        if width == 0 || !width.is_multiple_of(32) {
            return None;
        }
        Some(vec![
            Part { suffix: ".weight_packed", dtype: "U8", shape: vec![rows, width / 2], step_bytes: width / 2 },
            Part { suffix: ".weight_scale", dtype: "U8", shape: vec![rows, width / 32], step_bytes: width / 32 },
        ])
    }

    fn encode(&self, _: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        for values in values.chunks_mut(32) {
            let found = largest(values);
            let plain = if found > 0.0 { (found / LARGEST).log2().floor() + 127.0 } else { 127.0 };
            let plain = plain.clamp(1.0, 253.0) as u8;
            // The power below lets the largest be cut off, the one above lets the others be coarse: the better is taken.
            let (low, high) = (error(values, e8m0(plain)), error(values, e8m0(plain + 1)));
            let scale = if low <= high { plain } else { plain + 1 };
            group(values, e8m0(scale), &mut out[0]);
            out[1].push(scale);
        }
    }
}

/// Groups of 16 under a divisor for the tensor.
pub(in super::super) struct Nvfp4 {
    /// What scales are divided by when they are read.
    pub(in super::super) divisor: f32,
}

impl Nvfp4 {
    /// For a tensor with this largest magnitude: its scales use the whole range of E4M3.
    pub(in super::super) fn new(largest: f32) -> Self {
        Self { divisor: if largest > 0.0 { fp8::LARGEST * LARGEST / largest } else { 1.0 } }
    }
}

impl Encoder for Nvfp4 {
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        if width == 0 || !width.is_multiple_of(16) {
            return None;
        }
        Some(vec![
            Part { suffix: ".weight_packed", dtype: "U8", shape: vec![rows, width / 2], step_bytes: width / 2 },
            Part { suffix: ".weight_scale", dtype: "F8_E4M3", shape: vec![rows, width / 16], step_bytes: width / 16 },
        ])
    }

    fn encode(&self, _: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        for values in values.chunks_mut(16) {
            let scale = fp8::code(largest(values) / LARGEST * self.divisor);
            group(values, e4m3(scale) / self.divisor, &mut out[0]);
            out[1].push(scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest_numbers() {
        for (i, value) in VALUES.iter().enumerate() {
            assert_eq!((code(*value), code(-value)), (i as u8, 8 + i as u8));
        }
        // Halfway: 0.25 to 0, 0.75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 to 4, 5 to 4.
        assert_eq!(BOUNDS.map(code), [0, 2, 2, 4, 4, 6, 6]);
        assert_eq!(code(100.0), 7);
    }
}
