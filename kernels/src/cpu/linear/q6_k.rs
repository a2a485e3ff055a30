//! Q6_K: 6-bit values around 32 in groups of 16 with signed byte scales, under one half-precision factor at the end.
//!
//! The 32 is a minimum like those of the other formats: min_g = scale_g and dm = 32 d.

use super::StoredFormat;
use super::act::ActKind;
use super::supers::{self, ELEMS, Small, Super256};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q6_K",
    block_elems: ELEMS,
    block_bytes: 210,
    act: |_| ActKind::Q8x256,
    rows: supers::rows::<Q6K>,
    panel: supers::panel::<Q6K>,
    dequant: supers::dequant::<Q6K>,
};

struct Q6K;

// SAFETY: 128 bytes from 0 on, 64 from 128 on and 16 from 192 on, of 210.
unsafe impl Super256 for Q6K {
    const BYTES: usize = 210;
    const D_AT: usize = 208;
    const DM_AT: usize = 208;
    const DM_TIMES: f32 = 32.0;
    const SHARE: usize = 16;

    fn codes(block: &[u8], out: &mut [u8; ELEMS]) {
        for (e, out) in out.iter_mut().enumerate() {
            // Halves of 128 elements are four quarters of 32: two share a byte of nibbles, all four a byte of pairs.
            let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
            let nibble = block[64 * half + 32 * (quarter & 1) + l] >> (4 * (quarter / 2)) & 15;
            *out = nibble | (block[128 + 32 * half + l] >> (2 * quarter) & 3) << 4;
        }
    }

    fn small(block: &[u8]) -> Small {
        let mut scales = [0i16; 16];
        scales.iter_mut().zip(&block[192..208]).for_each(|(out, byte)| *out = i16::from(*byte as i8));
        Small { scales, mins: scales }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes_avx2(block: *const u8) -> [std::arch::x86_64::__m256i; 8] {
        use std::arch::x86_64::*;
        let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let mut out = [nibble; 8];
        for half in 0..2 {
            // SAFETY: by the caller.
            let load = |at: usize| unsafe { _mm256_loadu_si256(block.add(at).cast()) };
            let (a, b, bits) = (load(64 * half), load(64 * half + 32), load(128 + 32 * half));
            let low = |v| _mm256_and_si256(v, nibble);
            let high = |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble);
            // The two bits of each quarter at bits 4 and 5; bits from the neighbour byte are masked away.
            let two = |v| _mm256_and_si256(v, pair);
            out[4 * half] = _mm256_or_si256(low(a), two(_mm256_slli_epi16::<4>(bits)));
            out[4 * half + 1] = _mm256_or_si256(low(b), two(_mm256_slli_epi16::<2>(bits)));
            out[4 * half + 2] = _mm256_or_si256(high(a), two(bits));
            out[4 * half + 3] = _mm256_or_si256(high(b), two(_mm256_srli_epi16::<2>(bits)));
        }
        out
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn small_avx2(block: *const u8) -> (std::arch::x86_64::__m256i, std::arch::x86_64::__m256i) {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        let scales = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(block.add(192).cast()) });
        (scales, scales)
    }
}
