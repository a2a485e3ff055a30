//! Half-precision rows to f32 and back, with the machine's conversions.

use super::isa::{Isa, IsaLevel};
use half::f16;

/// Widens `bytes`, two a value, to `out`.
///
/// # Panics
/// `bytes` holds fewer values than `out`.
pub fn widen(isa: Isa, bytes: &[u8], out: &mut [f32]) {
    assert!(bytes.len() >= 2 * out.len(), "{} bytes for {} values", bytes.len(), out.len());
    let (halves, _) = bytes.as_chunks::<2>();
    #[cfg(target_arch = "x86_64")]
    if isa.level() >= IsaLevel::Avx2 {
        // SAFETY: the Isa proves the machine has AVX2 and F16C.
        return unsafe { x86::widen(halves, out) };
    }
    let _ = isa;
    out.iter_mut().zip(halves).for_each(|(out, half)| *out = f16::from_le_bytes(*half).to_f32());
}

/// Rounds `values` to the nearest half, ties to even, into `out`, two bytes a value. Values beyond the range are held at
/// its largest, so that one cannot turn a sum into infinity.
///
/// # Panics
/// `out` has room for fewer values.
pub fn narrow(isa: Isa, values: &[f32], out: &mut [u8]) {
    assert!(out.len() >= 2 * values.len(), "{} bytes for {} values", out.len(), values.len());
    let (halves, _) = out.as_chunks_mut::<2>();
    #[cfg(target_arch = "x86_64")]
    if isa.level() >= IsaLevel::Avx2 {
        // SAFETY: the Isa proves the machine has AVX2 and F16C.
        return unsafe { x86::narrow(values, halves) };
    }
    let _ = isa;
    values.iter().zip(halves).for_each(|(value, half)| *half = narrow_one(*value));
}

fn narrow_one(value: f32) -> [u8; 2] {
    let largest = f16::MAX.to_f32();
    f16::from_f32(value.clamp(-largest, largest)).to_le_bytes()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{f16, narrow_one};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen(halves: &[[u8; 2]], out: &mut [f32]) {
        let (from, (to, rest)) = (halves.as_chunks::<8>().0, out.as_chunks_mut::<8>());
        for (from, to) in from.iter().zip(&mut *to) {
            // SAFETY: sixteen bytes of one array and eight values of the other.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))) };
        }
        let done = to.len() * 8;
        rest.iter_mut().zip(&halves[done..]).for_each(|(out, half)| *out = f16::from_le_bytes(*half).to_f32());
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn narrow(values: &[f32], halves: &mut [[u8; 2]]) {
        let (largest, smallest) = (_mm256_set1_ps(65_504.0), _mm256_set1_ps(-65_504.0));
        let ((from, rest), to) = (values.as_chunks::<8>(), halves.as_chunks_mut::<8>().0);
        for (from, to) in from.iter().zip(to) {
            // SAFETY: eight values of one array and sixteen bytes of the other.
            unsafe {
                // The value stands second, so that a NaN stays one.
                let value = _mm256_loadu_ps(from.as_ptr());
                let held = _mm256_max_ps(smallest, _mm256_min_ps(largest, value));
                _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(held));
            }
        }
        let done = from.len() * 8;
        rest.iter().zip(&mut halves[done..]).for_each(|(value, half)| *half = narrow_one(*value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_rounds_as_the_definition_says() {
        let mut values: Vec<f32> = (0..3_001).map(|i| (i as f32 - 1_500.0) * 0.3777).collect();
        values.extend([1e9, -1e9, 65_519.0, 6e-8, 1e-9, -0.0, f32::NAN, f32::INFINITY]);
        for isa in Isa::testable() {
            let mut bytes = vec![0; 2 * values.len()];
            narrow(isa, &values, &mut bytes);
            let mut back = vec![0.0; values.len()];
            widen(isa, &bytes, &mut back);
            for (value, back) in values.iter().zip(&back) {
                let expected = f16::from_f32(value.clamp(-65_504.0, 65_504.0)).to_f32();
                assert!(*back == expected || back.is_nan() && value.is_nan(), "{}: {value} {back}", isa.name());
            }
        }
    }
}
