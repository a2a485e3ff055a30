//! From f32 to stored formats: one file a form, one line in a scheme's list.
//!
//! An [`Encoder`] turns rows of a matrix into the bytes of one or several stored tensors (codes and scales) and puts the
//! values those bytes stand for in place of the given ones, so that whoever asks knows the error. Rows are independent
//! of each other beyond the encoder's own step, so any number of threads can share a matrix.

mod floats;
mod fp4;
mod fp8;
mod int4;
mod q4_0;
mod q4_k;
mod q5_0;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;
mod super_blocks;

use crate::files::DType;

/// A stored tensor that an encoder makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// What stands behind the matrix's module name.
    pub(super) suffix: &'static str,
    /// Its type's name in safetensors headers.
    pub(super) dtype: &'static str,
    /// Its shape, PyTorch order.
    pub(super) shape: Vec<usize>,
    /// Its bytes for each step of rows.
    pub(super) step_bytes: usize,
}

/// A way to store matrices.
pub(super) trait Encoder: Send + Sync {
    /// Rows that are encoded together.
    fn row_step(&self) -> usize {
        1
    }

    /// The tensors that a matrix of this shape becomes; none if it cannot be stored so.
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>>;

    /// Encodes whole steps of rows of `width` values: appends the bytes of each part to the vector at its place, and
    /// replaces `values` by what the bytes stand for.
    fn encode(&self, width: usize, values: &mut [f32], out: &mut [Vec<u8>]);
}

pub(super) use fp4::{Mxfp4, Nvfp4};
pub(super) use fp8::{Fp8Block, Fp8Channel};
pub(super) use int4::Int4;

/// Blocks of a GGUF type.
pub(super) struct Blocks {
    /// The type.
    pub(super) dtype: DType,
    /// Encodes one row.
    pub(super) row: fn(&[f32], &mut Vec<u8>),
}

impl Blocks {
    /// bfloat16.
    pub(super) fn plain() -> Self {
        Self { dtype: DType::BF16, row: floats::bf16_row }
    }

    /// The encoder of `dtype`, if there is one.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        let row: fn(&[f32], &mut Vec<u8>) = match dtype {
            DType::BF16 => floats::bf16_row,
            DType::F16 => floats::f16_row,
            DType::F32 => floats::f32_row,
            DType::Q4_0 => q4_0::row,
            DType::Q4_K => q4_k::row,
            DType::Q5_0 => q5_0::row,
            DType::Q5_K => q5_k::row,
            DType::Q6_K => q6_k::row,
            DType::Q8_0 => q8_0::row,
            _ => return None,
        };
        Some(Self { dtype, row })
    }
}

impl Encoder for Blocks {
    fn parts(&self, rows: usize, width: usize) -> Option<Vec<Part>> {
        let step_bytes = self.dtype.row_bytes(width)?;
        Some(vec![Part { suffix: "", dtype: self.dtype.name(), shape: vec![rows, width], step_bytes }])
    }

    fn encode(&self, width: usize, values: &mut [f32], out: &mut [Vec<u8>]) {
        let start = out[0].len();
        values.chunks_exact(width.max(1)).for_each(|row| (self.row)(row, &mut out[0]));
        self.dtype.dequant(&out[0][start..], values);
    }
}

/// Calls `block` for each block of `N` values.
fn each<const N: usize>(row: &[f32], mut block: impl FnMut(&[f32; N])) {
    row.as_chunks::<N>().0.iter().for_each(&mut block);
}

/// The value as half precision, in bytes and as it will be read.
fn half(value: f32) -> ([u8; 2], f32) {
    let stored = half::f16::from_f32(value);
    (stored.to_le_bytes(), stored.to_f32())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values as weights have them: normal, with some rows of another size.
    pub(super) fn weights(count: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        (0..count).map(|i| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * [0.02, 0.5][i / 256 % 2]).collect()
    }

    /// Root mean square error over root mean square value.
    fn relative(values: &[f32], coded: &[f32]) -> f64 {
        let error: f64 = values.iter().zip(coded).map(|(v, c)| f64::from(v - c).powi(2)).sum();
        (error / values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()).sqrt()
    }

    #[test]
    fn errors_are_those_of_the_formats() {
        // Of normal values: a type's own step against the deviation, with a tenth of room. llama.cpp's quantisers on the
        // same kind of values come to 0.0060, 0.0970, 0.0757, 0.0482, 0.0380 and 0.0197.
        for (dtype, limit) in [
            (DType::Q8_0, 0.0066),
            (DType::Q4_0, 0.107),
            (DType::Q4_K, 0.083),
            (DType::Q5_0, 0.053),
            (DType::Q5_K, 0.042),
            (DType::Q6_K, 0.0216),
        ] {
            let values = weights(256 * 64);
            let mut coded = values.clone();
            let mut out = vec![Vec::new()];
            Blocks::of(dtype).unwrap().encode(256, &mut coded, &mut out);
            assert_eq!(Some(out[0].len()), dtype.row_bytes(values.len()));
            let error = relative(&values, &coded);
            assert!(error < limit && error > limit / 3.0, "{dtype}: {error}");
        }
    }

    #[test]
    fn zeros_constants_and_outliers_survive() {
        for dtype in
            [DType::BF16, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_0, DType::Q5_K, DType::Q6_K]
        {
            let encoder = Blocks::of(dtype).unwrap();
            let code = |values: &[f32]| {
                let mut coded = values.to_vec();
                encoder.encode(256, &mut coded, &mut [Vec::new()]);
                coded
            };
            assert!(code(&[0.0; 256]).iter().all(|v| *v == 0.0), "{dtype}");
            assert!(code(&[0.25; 256]).iter().all(|v| (v - 0.25).abs() < 0.01), "{dtype}");
            let mut spike = [0.001; 256];
            spike[77] = -100.0;
            assert!((code(&spike)[77] + 100.0).abs() < 1.0, "{dtype}");
        }
    }
}
