//! BF16: the upper half of IEEE single precision.
//!
//! With bf16 instructions activations are rounded to bf16 too, for one token as for many, so that both give the same
//! result. Without, weights are widened and activations stay f32.

use super::act::ActKind;
use super::floats::{self, Widen};
use super::{StoredFormat, Work};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "BF16",
    block_elems: 1,
    block_bytes: 2,
    act: |isa| if isa.bf16() { ActKind::Bf16 } else { ActKind::F32 },
    rows,
    panel: |_| None,
    dequant: floats::dequant::<Bf16>,
};

fn rows(work: &Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    if work.isa.bf16() {
        return floats::rows_bf16(work);
    }
    floats::rows::<Bf16>(work);
}

struct Bf16;

// SAFETY: plain and masked loads of the elements asked for.
unsafe impl Widen for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load8(p: *const u8) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        let bits = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(p.cast()) });
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
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
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}
