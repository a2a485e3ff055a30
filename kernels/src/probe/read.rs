//! Reading: the exclusive-or of all words, at the width of the machine's loads.

use super::Line;
use crate::cpu::Isa;

/// The exclusive-or of all words of `lines`.
pub(super) fn checksum(isa: Isa, lines: &[Line]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::cpu::IsaLevel;
        match isa.level() {
            // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
            IsaLevel::Avx512 => return unsafe { x86::avx512(lines) },
            // SAFETY: as above.
            IsaLevel::Avx2 => return unsafe { x86::avx2(lines) },
            IsaLevel::Portable => {}
        }
    }
    let _ = isa;
    portable(lines)
}

fn portable(lines: &[Line]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(&line.0) {
            *sum ^= word;
        }
    }
    fold(&sums)
}

fn fold(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Line, portable};
    use std::arch::x86_64::*;

    /// Eight loads of a whole line a turn, and as many sums: enough to keep the load ports busy.
    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(lines: &[Line]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 8];
        let mut turns = lines.chunks_exact(8);
        for turn in &mut turns {
            for (sum, line) in sums.iter_mut().zip(turn) {
                // SAFETY: a `Line` is 64 bytes at an address that is a multiple of 64.
                let load = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
                *sum = _mm512_xor_si512(*sum, load);
            }
        }
        let all = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_xor_si512(a, b));
        let mut out = Line([0; 8]);
        // SAFETY: `out` is a `Line`: 64 bytes, aligned to 64.
        unsafe { _mm512_store_si512(out.0.as_mut_ptr().cast(), all) };
        super::fold(&out.0) ^ portable(turns.remainder())
    }

    /// Eight half lines a turn.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(lines: &[Line]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 8];
        let mut turns = lines.chunks_exact(4);
        for turn in &mut turns {
            for (pair, line) in sums.chunks_exact_mut(2).zip(turn) {
                for (half, sum) in pair.iter_mut().enumerate() {
                    // SAFETY: a `Line` is 64 bytes at an address that is a multiple of 64; `half` is 0 or 1.
                    let load = unsafe { _mm256_load_si256(line.0.as_ptr().add(4 * half).cast()) };
                    *sum = _mm256_xor_si256(*sum, load);
                }
            }
        }
        let all = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_xor_si256(a, b));
        let mut out = Line([0; 8]);
        // SAFETY: `out` is a `Line`, whose first 32 bytes are aligned to 32.
        unsafe { _mm256_store_si256(out.0.as_mut_ptr().cast(), all) };
        super::fold(&out.0) ^ portable(turns.remainder())
    }
}
