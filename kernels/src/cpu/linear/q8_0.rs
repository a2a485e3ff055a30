//! Q8_0: a half-precision scale and 32 signed bytes.

use super::StoredFormat;
use super::act::ActKind;
use super::blocks::{self, Blocks32};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q8_0",
    block_elems: 32,
    block_bytes: 34,
    act: |_| ActKind::Q8x32,
    rows: blocks::rows::<Q8_0>,
    panel: blocks::panel::<Q8_0>,
    dequant: blocks::dequant::<Q8_0>,
};

struct Q8_0;

// SAFETY: 32 bytes from 2 on, of 34.
unsafe impl Blocks32 for Q8_0 {
    const BYTES: usize = 34;
    const ZERO: i32 = 128;

    fn codes(block: &[u8], out: &mut [u8; 32]) {
        out.iter_mut().zip(&block[2..]).for_each(|(out, code)| *out = code ^ 0x80);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes_avx2(block: *const u8) -> std::arch::x86_64::__m256i {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        let signed = unsafe { _mm256_loadu_si256(block.add(2).cast()) };
        _mm256_xor_si256(signed, _mm256_set1_epi8(-128))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair_avx2(a: *const u8, b: *const u8) -> (std::arch::x86_64::__m256i, std::arch::x86_64::__m256i) {
        use std::arch::x86_64::*;
        let zero = _mm256_set1_epi8(-128);
        // SAFETY: by the caller.
        let both = |at: usize| unsafe { _mm256_loadu2_m128i(b.add(at).cast(), a.add(at).cast()) };
        (_mm256_xor_si256(both(2), zero), _mm256_xor_si256(both(18), zero))
    }
}
