//! Q5_K: as Q4_K, with a fifth bit for each element: bit j of byte l belongs to element l of group j.

use super::StoredFormat;
use super::act::ActKind;
use super::supers::{self, ELEMS, Small, Super256};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q5_K",
    block_elems: ELEMS,
    block_bytes: 176,
    act: |_| ActKind::Q8x256,
    rows: supers::rows::<Q5K>,
    panel: supers::panel::<Q5K>,
    dequant: supers::dequant::<Q5K>,
};

struct Q5K;

// SAFETY: 12 bytes from 4 on, 32 from 16 on and 128 from 48 on, of 176.
unsafe impl Super256 for Q5K {
    const BYTES: usize = 176;
    const D_AT: usize = 0;
    const DM_AT: usize = 2;
    const DM_TIMES: f32 = 1.0;
    const SHARE: usize = 32;

    fn codes(block: &[u8], out: &mut [u8; ELEMS]) {
        let fifth = &block[16..48];
        for (j, (pair, out)) in block[48..].as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
            for (i, byte) in pair.iter().enumerate() {
                out[i] = byte & 15 | (fifth[i] >> (2 * j) & 1) << 4;
                out[i + 32] = byte >> 4 | (fifth[i] >> (2 * j + 1) & 1) << 4;
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
        let (nibble, bit) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        // SAFETY: by the caller.
        let fifth = unsafe { _mm256_loadu_si256(block.add(16).cast()) };
        // Bit j of every byte at bit 4; bits shifted in from the neighbour byte are masked away.
        let bits = [
            _mm256_slli_epi16::<4>(fifth),
            _mm256_slli_epi16::<3>(fifth),
            _mm256_slli_epi16::<2>(fifth),
            _mm256_slli_epi16::<1>(fifth),
            fifth,
            _mm256_srli_epi16::<1>(fifth),
            _mm256_srli_epi16::<2>(fifth),
            _mm256_srli_epi16::<3>(fifth),
        ];
        let mut out = [nibble; 8];
        for j in 0..4 {
            // SAFETY: by the caller.
            let bytes = unsafe { _mm256_loadu_si256(block.add(48 + 32 * j).cast()) };
            let (low, high) =
                (_mm256_and_si256(bytes, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble));
            out[2 * j] = _mm256_or_si256(low, _mm256_and_si256(bits[2 * j], bit));
            out[2 * j + 1] = _mm256_or_si256(high, _mm256_and_si256(bits[2 * j + 1], bit));
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
