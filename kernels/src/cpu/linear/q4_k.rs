//! Q4_K: nibbles in groups of 32 with 6-bit scales and minimums, under two half-precision factors.

use super::StoredFormat;
use super::act::ActKind;
use super::supers::{self, ELEMS, Small, Super256};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q4_K",
    block_elems: ELEMS,
    block_bytes: 144,
    act: |_| ActKind::Q8x256,
    rows: supers::rows::<Q4K>,
    panel: supers::panel::<Q4K>,
    dequant: supers::dequant::<Q4K>,
};

struct Q4K;

// SAFETY: 12 bytes from 4 on and 128 from 16 on, of 144.
unsafe impl Super256 for Q4K {
    const BYTES: usize = 144;
    const D_AT: usize = 0;
    const DM_AT: usize = 2;
    const DM_TIMES: f32 = 1.0;
    const SHARE: usize = 32;

    fn codes(block: &[u8], out: &mut [u8; ELEMS]) {
        for (pair, out) in block[16..].as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0) {
            for (i, byte) in pair.iter().enumerate() {
                out[i] = byte & 15;
                out[i + 32] = byte >> 4;
            }
        }
    }

    fn small(block: &[u8]) -> Small {
        supers::six_bit_small(&block[4..16])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes_avx2(block: *const u8) -> [std::arch::x86_64::__m256i; 8] {
        use std::arch::x86_64::*;
        let mask = _mm256_set1_epi8(15);
        let mut out = [mask; 8];
        for j in 0..4 {
            // SAFETY: by the caller.
            let bytes = unsafe { _mm256_loadu_si256(block.add(16 + 32 * j).cast()) };
            out[2 * j] = _mm256_and_si256(bytes, mask);
            out[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        }
        out
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn small_avx2(block: *const u8) -> (std::arch::x86_64::__m256i, std::arch::x86_64::__m256i) {
        // SAFETY: by the caller.
        unsafe { supers::six_bit_small_avx2(block.add(4)) }
    }

    unsafe fn small_bytes(block: *const u8) -> (u64, u64) {
        // SAFETY: by the caller.
        unsafe { supers::six_bit_bytes(block.add(4)) }
    }
}
