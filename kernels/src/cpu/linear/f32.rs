//! F32: IEEE single precision.

use super::StoredFormat;
use super::act::ActKind;
use super::floats::{self, Widen};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "F32",
    block_elems: 1,
    block_bytes: 4,
    act: |_| ActKind::F32,
    rows: floats::rows::<F32>,
    panel: |_| None,
    dequant: floats::dequant::<F32>,
};

struct F32;

// SAFETY: plain and masked loads of the elements asked for.
unsafe impl Widen for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256 {
        // SAFETY: by the caller.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(p.cast()) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn load16(p: *const u8, n: usize) -> std::arch::x86_64::__m512 {
        // SAFETY: by the caller.
        unsafe { floats::x86::load_f32(p, n) }
    }
}
