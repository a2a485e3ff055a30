//! Q5_0: a half-precision scale, the fifth bits of 32 elements, and their nibbles as in Q4_0; values around 16.

use super::StoredFormat;
use super::act::ActKind;
use super::blocks::{self, Blocks32};

pub(super) const FORMAT: StoredFormat = StoredFormat {
    name: "Q5_0",
    block_elems: 32,
    block_bytes: 22,
    act: |_| ActKind::Q8x32,
    rows: blocks::rows::<Q5_0>,
    panel: blocks::panel::<Q5_0>,
    dequant: blocks::dequant::<Q5_0>,
};

struct Q5_0;

// SAFETY: 4 bytes from 2 on and 16 from 6 on, of 22.
unsafe impl Blocks32 for Q5_0 {
    const BYTES: usize = 22;
    const ZERO: i32 = 16;

    fn codes(block: &[u8], out: &mut [u8; 32]) {
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for (i, byte) in block[6..].iter().enumerate() {
            out[i] = byte & 15 | ((fifth >> i & 1) << 4) as u8;
            out[i + 16] = byte >> 4 | ((fifth >> (i + 16) & 1) << 4) as u8;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes_avx2(block: *const u8) -> std::arch::x86_64::__m256i {
        use std::arch::x86_64::*;
        // SAFETY: by the caller.
        let (bytes, fifth) =
            unsafe { (_mm_loadu_si128(block.add(6).cast()), block.add(2).cast::<i32>().read_unaligned()) };
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        let nibbles = _mm256_and_si256(both, _mm256_set1_epi8(15));
        // Byte i / 8 of the bits into lane i, then bit i % 8 of it.
        let spread = _mm256_shuffle_epi8(
            _mm256_set1_epi32(fifth),
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303),
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        _mm256_or_si256(nibbles, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair_avx2(a: *const u8, b: *const u8) -> (std::arch::x86_64::__m256i, std::arch::x86_64::__m256i) {
        use std::arch::x86_64::*;
        let (mask, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        // SAFETY: by the caller.
        let (both, bits) = unsafe {
            let word = |p: *const u8| _mm_set1_epi32(p.add(2).cast::<i32>().read_unaligned());
            (_mm256_loadu2_m128i(b.add(6).cast(), a.add(6).cast()), _mm256_set_m128i(word(b), word(a)))
        };
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let first = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101_0101_0101_0101, 0));
        let second = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202));
        let set = |bytes| {
            let spread = _mm256_shuffle_epi8(bits, bytes);
            _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), fifth)
        };
        let (low, high) = (_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask));
        (_mm256_or_si256(low, set(first)), _mm256_or_si256(high, set(second)))
    }
}
