//! f32 to and from 8-bit codes with one scale, symmetric about zero: for stored state.
//!
//! Every instruction set gives the same bits: a code is a product and a rounding to even, an expansion one product.

use super::{Isa, IsaLevel};

/// Codes of `values` into `codes` (as bytes of i8); returns the scale. The largest magnitude becomes 127. What is not
/// finite is held at the largest number.
///
/// # Panics
/// The lengths differ.
pub fn quantise(isa: Isa, values: &[f32], codes: &mut [u8]) -> f32 {
    assert_eq!(values.len(), codes.len(), "one code a value");
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        // SAFETY: the level says the machine has AVX-512 F, BW, VL, DQ.
        IsaLevel::Avx512 => return unsafe { quantise_avx512(values, codes) },
        // SAFETY: the level says the machine has AVX2.
        IsaLevel::Avx2 => return unsafe { quantise_avx2(values, codes) },
        IsaLevel::Portable => {}
    }
    let _ = isa;
    quantise_body(values, codes)
}

/// `codes` (bytes of i8) times `scale` into `out`.
///
/// # Panics
/// The lengths differ.
pub fn expand(isa: Isa, codes: &[u8], scale: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "one value a code");
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        // SAFETY: the level says the machine has AVX-512 F, BW, VL, DQ.
        IsaLevel::Avx512 => return unsafe { expand_avx512(codes, scale, out) },
        // SAFETY: the level says the machine has AVX2.
        IsaLevel::Avx2 => return unsafe { expand_avx2(codes, scale, out) },
        IsaLevel::Portable => {}
    }
    let _ = isa;
    expand_body(codes, scale, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,f16c")]
fn quantise_avx512(values: &[f32], codes: &mut [u8]) -> f32 {
    quantise_body(values, codes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma,avx2,f16c")]
fn quantise_avx2(values: &[f32], codes: &mut [u8]) -> f32 {
    quantise_body(values, codes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,f16c")]
fn expand_avx512(codes: &[u8], scale: f32, out: &mut [f32]) {
    expand_body(codes, scale, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma,avx2,f16c")]
fn expand_avx2(codes: &[u8], scale: f32, out: &mut [f32]) {
    expand_body(codes, scale, out);
}

#[inline(always)]
fn quantise_body(values: &[f32], codes: &mut [u8]) -> f32 {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs())).min(f32::MAX);
    let scale = largest / 127.0;
    // Below this the inverse would be infinite; so small a row is zero to everything that reads it.
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(values) {
        // `as` holds NaN at 0 and what is too large at the ends.
        *code = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
    scale
}

#[inline(always)]
fn expand_body(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32::from(*code as i8) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let values: Vec<f32> = (0..77).map(|i| ((i * 53 % 89) as f32 - 44.0) * 0.37).collect();
        let run = |isa| {
            let (mut codes, mut out) = (vec![0; 77], vec![0.0; 77]);
            let scale = quantise(isa, &values, &mut codes);
            expand(isa, &codes, scale, &mut out);
            (codes, scale.to_bits(), out.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
        };
        let expected = run(Isa::at_most(IsaLevel::Portable));
        for isa in Isa::testable() {
            assert_eq!(run(isa), expected, "{}", isa.name());
        }
    }

    #[test]
    fn extremes_are_held() {
        let mut codes = [0; 3];
        let scale = quantise(Isa::detect(), &[f32::INFINITY, -f32::MAX, f32::NAN], &mut codes);
        assert!(scale.is_finite());
        assert_eq!(codes.map(|c| c as i8), [127, -127, 0]);
        assert_eq!(quantise(Isa::detect(), &[0.0, 1e-40], &mut codes[..2]).to_bits() & !0x7f_ffff, 0);
        assert_eq!(codes[..2], [0, 0]);
    }
}
