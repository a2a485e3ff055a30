//! F16: IEEE half precision.

use super::StoredFormat;
use super::act::ActKind;
use super::floats::{self, Widen};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "F16",
    block_elems: 1,
    block_bytes: 2,
    act: |_| ActKind::F32,
    rows: floats::rows::<F16>,
    panel: |_| None,
    dequant: floats::dequant::<F16>,
};

struct F16;

// SAFETY: plain and masked loads of the elements asked for.
unsafe impl Widen for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.cast()) })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        // SAFETY: by the caller; lanes that are off are not read.
        let bits = unsafe {
            if n >= 16 { _mm256_loadu_si256(p.cast()) } else { _mm256_maskz_loadu_epi16((1u16 << n) - 1, p.cast()) }
        };
        _mm512_cvtph_ps(bits)
    }
}
