//! Rows multiplied where they lie: cutting into groups of 8, and the sums across lanes.

use super::Work;

/// Rows whose results lie in the lanes of one vector.
pub(super) const GROUP: usize = 8;

/// The bytes of 8 rows from `row` on; past the chunk's end the last row again (its result is not stored).
pub(super) fn group_rows(work: &Work<'_>, row: usize) -> [*const u8; GROUP] {
    let last = work.first + work.rows - 1;
    let mut rows = [std::ptr::null(); GROUP];
    for (i, slot) in rows.iter_mut().enumerate() {
        *slot = work.row((row + i).min(last));
    }
    rows
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    /// Lane i of the result is the sum of the lanes of `p[i]`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn sum8(p: &[__m256i; 8]) -> __m256i {
        let pair = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let quad = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let low = quad(pair(p[0], p[1]), pair(p[2], p[3]));
        let high = quad(pair(p[4], p[5]), pair(p[6], p[7]));
        _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
    }

    /// Lanes 0..4 of `p[i]` sum to lane i of the result, lanes 4..8 to lane i + 4.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn sum4x2(p: &[__m256i; 4]) -> __m256i {
        let pair = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (low, high) = (pair(p[0], p[1]), pair(p[2], p[3]));
        _mm256_add_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high))
    }

    /// The four bytes at offset `at` of 8 rows, a row a lane. Masked broadcasts from memory leave the shuffle units, of
    /// which the sums need all, alone.
    ///
    /// # Safety
    /// Four bytes can be read there in every row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(in super::super) unsafe fn dwords(rows: &[*const u8; 8], at: usize) -> __m256i {
        // SAFETY: by the caller.
        let word = |i: usize| unsafe { rows[i].add(at).cast::<i32>().read_unaligned() };
        let (mut even, mut odd) = (_mm256_set1_epi32(word(0)), _mm256_set1_epi32(word(1)));
        even = _mm256_mask_set1_epi32(even, 1 << 2, word(2));
        odd = _mm256_mask_set1_epi32(odd, 1 << 3, word(3));
        even = _mm256_mask_set1_epi32(even, 1 << 4, word(4));
        odd = _mm256_mask_set1_epi32(odd, 1 << 5, word(5));
        even = _mm256_mask_set1_epi32(even, 1 << 6, word(6));
        odd = _mm256_mask_set1_epi32(odd, 1 << 7, word(7));
        _mm256_mask_blend_epi32(0b1010_1010, even, odd)
    }

    /// The half-precision numbers in the low halves of the lanes, as f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,f16c")]
    pub(in super::super) fn low_halves(dwords: __m256i) -> __m256 {
        _mm256_cvtph_ps(_mm256_cvtepi32_epi16(dwords))
    }

    /// The half-precision numbers in the high halves of the lanes, as f32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,f16c")]
    pub(in super::super) fn high_halves(dwords: __m256i) -> __m256 {
        low_halves(_mm256_srli_epi32::<16>(dwords))
    }

    /// How far in front of a group of rows to ask for bytes: whole groups, and far enough for memory to answer in time.
    #[inline(always)]
    pub(in super::super) fn ahead(row_bytes: usize) -> usize {
        let group = 8 * row_bytes;
        group * (12_288 / group.max(1)).max(1)
    }

    /// Asks for the next `BYTES` bytes of the group of rows that follows: while one group is multiplied, the next comes
    /// from memory in order, which the hardware's prefetcher does not see in eight short interleaved streams.
    #[inline(always)]
    pub(in super::super) fn prefetch<const BYTES: usize>(next: *const u8) {
        let mut at = 0;
        while at < BYTES {
            // SAFETY: a prefetch of any address has no effect but on caches.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(at).cast()) };
            at += 64;
        }
    }

    /// The 16-bit number at `p`, at any alignment.
    ///
    /// # Safety
    /// Two bytes can be read at `p`.
    #[inline(always)]
    pub(in super::super) unsafe fn u16_at(p: *const u8) -> i16 {
        // SAFETY: by the caller.
        unsafe { p.cast::<i16>().read_unaligned() }
    }

    /// The half-precision numbers at offset `at` of 8 rows, as f32.
    ///
    /// # Safety
    /// Two bytes can be read there in every row.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(in super::super) unsafe fn halves(rows: &[*const u8; 8], at: usize) -> __m256 {
        // SAFETY: by the caller.
        let h = |i: usize| unsafe { u16_at(rows[i].add(at)) };
        _mm256_cvtph_ps(_mm_set_epi16(h(7), h(6), h(5), h(4), h(3), h(2), h(1), h(0)))
    }
}
