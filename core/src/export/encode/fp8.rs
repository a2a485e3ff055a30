//! E4M3 with the largest value of each block or each row at the end of the range.

use super::{Encoder, Part};
use half::bf16;

/// Largest E4M3 number.
pub(super) const LARGEST: f32 = 448.0;

/// Blocks of 128 by 128 with f32 scales called inverses, as the models published in FP8 have them.
pub(in super::super) struct Fp8Block;

/// Rows with bf16 scales.
pub(in super::super) struct Fp8Channel;

/// Rows and columns of a block.
const BLOCK: usize = 128;

/// The nearest E4M3 code of a value within the range, ties to even.
pub(super) fn code(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(LARGEST);
    // Below the smallest normal number, 2^-6, codes are eighths of it.
    if magnitude < 0.015_625 {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    // Twenty of the 23 bits of the fraction are rounded away; a carry goes to the exponent, as it should.
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    let exponent = (rounded >> 23) - 120;
    sign | ((exponent << 3 | rounded >> 20 & 7) as u8).min(0x7e)
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0f32, |m, v| m.max(v.abs()))
}

impl Encoder for Fp8Block {
    fn row_step(&self) -> usize {
        BLOCK
    }

    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        let across = width.div_ceil(BLOCK);
        let scales = vec![rows.div_ceil(BLOCK), across];
        Some(vec![
            Part { suffix: ".weight", dtype: "F8_E4M3", shape: vec![rows, width], step_bytes: BLOCK * width },
            Part { suffix: ".weight_scale_inv", dtype: "F32", shape: scales, step_bytes: 4 * across },
        ])
    }

    fn encode(&self, width: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        for rows in values.chunks_mut(BLOCK * width.max(1)) {
            let start = out[0].len();
            out[0].resize(start + rows.len(), 0);
            for from in (0..width).step_by(BLOCK) {
                let to = (from + BLOCK).min(width);
                let found = largest(rows.chunks(width).flat_map(|row| row[from..to].iter().copied()));
                let scale = if found > 0.0 { found / LARGEST } else { 1.0 };
                out[1].extend(scale.to_le_bytes());
                for (i, row) in rows.chunks_mut(width).enumerate() {
                    for (j, value) in row[from..to].iter_mut().enumerate() {
                        let code = code(*value / scale);
                        out[0][start + i * width + from + j] = code;
                        *value = crate::files::e4m3(code) * scale;
                    }
                }
            }
        }
    }
}

impl Encoder for Fp8Channel {
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        Some(vec![
            Part { suffix: ".weight", dtype: "F8_E4M3", shape: vec![rows, width], step_bytes: width },
            Part { suffix: ".weight_scale", dtype: "BF16", shape: vec![rows, 1], step_bytes: 2 },
        ])
    }

    fn encode(&self, width: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        for row in values.chunks_mut(width.max(1)) {
            let found = largest(row.iter().copied());
            // The stored scale, so that codes are of what will be read.
            let scale = bf16::from_f32(if found > 0.0 { found / LARGEST } else { 1.0 });
            out[1].extend(scale.to_le_bytes());
            let scale = scale.to_f32();
            for value in row {
                let code = code(*value / scale);
                out[0].push(code);
                *value = crate::files::e4m3(code) * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest_numbers() {
        // Every number is its own code; halfway between two neighbours the even one is taken.
        for byte in 0..=0x7e {
            assert_eq!(code(crate::files::e4m3(byte)), byte);
            if byte < 0x7e {
                let (low, high) = (crate::files::e4m3(byte), crate::files::e4m3(byte + 1));
                assert_eq!(code((low + high) / 2.0), byte + byte % 2, "{byte}");
                assert_eq!(code(low + 0.51 * (high - low)), byte + 1);
            }
        }
        assert_eq!((code(1e9), code(-1.0), code(-0.0)), (0x7e, 0xb8, 0x80));
    }
}
