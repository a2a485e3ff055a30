//! Arithmetic: independent multiply-add chains in registers, in each number format there are instructions for.
//!
//! Twelve chains cover the latency of the slowest pipe (5 cycles, two pipes) and, with their operands, fit 16 registers;
//! AVX-512 has 32 and gets sixteen. Float values stay normal numbers all along: each chain is x·a + b with |a| < 1, which
//! settles at b / (1 − a).

use crate::cpu::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::IsaLevel;
use crit_core::model::program::Precision;

const CHAINS: usize = 12;
#[cfg(target_arch = "x86_64")]
const WIDE_CHAINS: usize = 16;
const TURNS: usize = 256;

/// Operations of one [`run`]; `None` if the machine has no instructions for the format.
pub(super) fn ops(isa: Isa, precision: Precision) -> Option<usize> {
    Some(2 * lanes(isa, precision)? * chains(isa) * TURNS)
}

fn chains(isa: Isa) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 {
        return WIDE_CHAINS;
    }
    let _ = isa;
    CHAINS
}

/// Multiply-adds of one step of one chain.
fn lanes(isa: Isa, precision: Precision) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    match (precision, isa.level()) {
        (Precision::F32, IsaLevel::Avx512) => return Some(16),
        (Precision::F32, IsaLevel::Avx2) => return Some(8),
        (Precision::Bf16, IsaLevel::Avx512) if isa.bf16() => return Some(32),
        (Precision::Int8, IsaLevel::Avx512) if isa.vnni() => return Some(64),
        (Precision::Int8, IsaLevel::Avx512) => return Some(64),
        (Precision::Int8, IsaLevel::Avx2) => return Some(32),
        _ => {}
    }
    let _ = isa;
    (precision == Precision::F32).then_some(4)
}

/// Runs the chains once; the answer depends on all of them.
pub(super) fn run(isa: Isa, precision: Precision) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match (precision, isa.level()) {
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        (Precision::F32, IsaLevel::Avx512) => return unsafe { x86::f32_avx512() },
        // SAFETY: as above.
        (Precision::F32, IsaLevel::Avx2) => return unsafe { x86::f32_avx2() },
        // SAFETY: as above, and `bf16` says the machine has AVX512-BF16.
        (Precision::Bf16, IsaLevel::Avx512) if isa.bf16() => return unsafe { x86::bf16_avx512() },
        // SAFETY: as above, and `vnni` says the machine has AVX512-VNNI.
        (Precision::Int8, IsaLevel::Avx512) if isa.vnni() => return unsafe { x86::int8_vnni() },
        // SAFETY: as above; the level includes AVX512BW.
        (Precision::Int8, IsaLevel::Avx512) => return unsafe { x86::int8_avx512() },
        // SAFETY: as above.
        (Precision::Int8, IsaLevel::Avx2) => return unsafe { x86::int8_avx2() },
        _ => {}
    }
    let _ = (isa, precision);
    portable()
}

/// Four lanes a chain, as plain Rust compiles to on every target.
fn portable() -> u64 {
    let factor = std::hint::black_box([0.999f32; 4]);
    let addend = std::hint::black_box([0.01f32; 4]);
    let mut chains = std::hint::black_box([[1.0f32; 4]; CHAINS]);
    for _ in 0..TURNS {
        for chain in &mut chains {
            for lane in 0..4 {
                chain[lane] = chain[lane] * factor[lane] + addend[lane];
            }
        }
    }
    chains.iter().flatten().fold(0, |sum, x| sum ^ u64::from(x.to_bits()))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, TURNS, WIDE_CHAINS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub(super) fn f32_avx512() -> u64 {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.01)));
        let mut chains = [_mm512_set1_ps(black_box(1.0)); WIDE_CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                *chain = _mm512_fmadd_ps(*chain, a, b);
            }
        }
        let sum = chains.into_iter().fold(_mm512_setzero_ps(), |x, y| _mm512_add_ps(x, y));
        u64::from(_mm512_reduce_add_ps(sum).to_bits())
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn f32_avx2() -> u64 {
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.01)));
        let mut chains = [_mm256_set1_ps(black_box(1.0)); CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                *chain = _mm256_fmadd_ps(*chain, a, b);
            }
        }
        let sum = chains.into_iter().fold(_mm256_setzero_ps(), |x, y| _mm256_add_ps(x, y));
        u64::from(_mm256_cvtss_f32(sum).to_bits())
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn bf16_avx512() -> u64 {
        let a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(0.01)), _mm512_set1_ps(black_box(-0.01)));
        let b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.49)));
        let mut chains = [_mm512_set1_ps(black_box(1.0)); WIDE_CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                *chain = _mm512_dpbf16_ps(*chain, a, b);
            }
        }
        let sum = chains.into_iter().fold(_mm512_setzero_ps(), |x, y| _mm512_add_ps(x, y));
        u64::from(_mm512_reduce_add_ps(sum).to_bits())
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn int8_vnni() -> u64 {
        let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(-5)));
        let mut chains = [_mm512_set1_epi32(black_box(1)); WIDE_CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                *chain = _mm512_dpbusd_epi32(*chain, a, b);
            }
        }
        let sum = chains.into_iter().fold(_mm512_setzero_si512(), |x, y| _mm512_add_epi32(x, y));
        _mm512_reduce_add_epi32(sum) as u64
    }

    /// Without dot products of bytes: products to 16 bits, pairs to 32 bits, sum.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn int8_avx512() -> u64 {
        let (b, ones) = (_mm512_set1_epi8(black_box(-5)), _mm512_set1_epi16(1));
        let mut chains = [_mm512_set1_epi32(black_box(1)); WIDE_CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                // The chain's own bits as the other factor keep the compiler from doing the product once for all.
                let pairs = _mm512_maddubs_epi16(*chain, b);
                *chain = _mm512_add_epi32(*chain, _mm512_madd_epi16(pairs, ones));
            }
        }
        let sum = chains.into_iter().fold(_mm512_setzero_si512(), |x, y| _mm512_add_epi32(x, y));
        _mm512_reduce_add_epi32(sum) as u64
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn int8_avx2() -> u64 {
        let (b, ones) = (_mm256_set1_epi8(black_box(-5)), _mm256_set1_epi16(1));
        let mut chains = [_mm256_set1_epi32(black_box(1)); CHAINS];
        for _ in 0..TURNS {
            for chain in &mut chains {
                let pairs = _mm256_maddubs_epi16(*chain, b);
                *chain = _mm256_add_epi32(*chain, _mm256_madd_epi16(pairs, ones));
            }
        }
        let sum = chains.into_iter().fold(_mm256_setzero_si256(), |x, y| _mm256_add_epi32(x, y));
        _mm256_extract_epi32::<0>(sum) as u64
    }
}
