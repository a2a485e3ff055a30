//! Q4_0: a half-precision scale and 32 nibbles around 8, the low ones first.

use super::StoredFormat;
use super::act::ActKind;
use super::blocks::{self, Blocks32};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q4_0",
    block_elems: 32,
    block_bytes: 18,
    act: |_| ActKind::Q8x32,
    rows: blocks::rows::<Q4_0>,
    panel: blocks::panel::<Q4_0>,
    dequant: blocks::dequant::<Q4_0>,
};

struct Q4_0;

// SAFETY: 16 bytes from 2 on, of 18.
unsafe impl Blocks32 for Q4_0 {
    const BYTES: usize = 18;
    const ZERO: i32 = 8;

    fn codes(block: &[u8], out: &mut [u8; 32]) {
        for (i, byte) in block[2..].iter().enumerate() {
            out[i] = byte & 15;
            out[i + 16] = byte >> 4;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes_avx2(block: *const u8) -> std::arch::x86_64::__m256i {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        let bytes = unsafe { _mm_loadu_si128(block.add(2).cast()) };
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair_avx2(a: *const u8, b: *const u8) -> (std::arch::x86_64::__m256i, std::arch::x86_64::__m256i) {
        use std::arch::x86_64::*;
        let mask = _mm256_set1_epi8(15);
        // SAFETY: by the caller.
        let both = unsafe { _mm256_loadu2_m128i(b.add(2).cast(), a.add(2).cast()) };
        (_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask))
    }
}
