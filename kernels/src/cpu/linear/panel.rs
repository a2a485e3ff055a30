//! 16 rows rearranged so that each lane of a vector holds a row: `[k / 4][16 rows][4]` codes.
//!
//! Rearranging costs a few instructions a weight byte and serves all tokens of the step.

/// Rows of a panel.
pub(super) const ROWS: usize = 16;

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::super::Work;
    use super::ROWS;
    use std::arch::x86_64::*;

    /// The bytes of the chunk's 16 rows; past the chunk's end the last row again (its result is not stored).
    pub(in super::super) fn panel_rows(work: &Work<'_>) -> [*const u8; ROWS] {
        let mut rows = [std::ptr::null(); ROWS];
        for (i, slot) in rows.iter_mut().enumerate() {
            *slot = work.row(work.first + i.min(work.rows - 1));
        }
        rows
    }

    /// Codes of 32 elements of 16 rows, `[16][32]`, into `out` as `[8][16][4]`.
    ///
    /// # Safety
    /// 512 bytes can be written at `out`, which is aligned to 64.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn interleave(codes: &[__m256i; ROWS], out: *mut u8) {
        for half in 0..2 {
            // Vector j holds 16 bytes of the rows j, j + 4, j + 8, j + 12.
            let four = |j: usize| {
                let part = |r: usize| match half {
                    0 => _mm256_castsi256_si128(codes[r]),
                    _ => _mm256_extracti128_si256::<1>(codes[r]),
                };
                let v = _mm512_castsi128_si512(part(j));
                let v = _mm512_inserti32x4::<1>(v, part(j + 4));
                let v = _mm512_inserti32x4::<2>(v, part(j + 8));
                _mm512_inserti32x4::<3>(v, part(j + 12))
            };
            let (a, b, c, d) = (four(0), four(1), four(2), four(3));
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let columns = [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ];
            for i in 0..4 {
                // SAFETY: 8 vectors of 64 bytes by the caller.
                unsafe { _mm512_store_si512(out.add((half * 4 + i) * 64).cast(), columns[i]) };
            }
        }
    }

    /// The half-precision numbers at offset `at` of 16 rows, as f32.
    ///
    /// # Safety
    /// Two bytes can be read there in every row.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn halves16(rows: &[*const u8; ROWS], at: usize) -> __m512 {
        let mut bits = [0i16; ROWS];
        for r in 0..ROWS {
            // SAFETY: by the caller.
            bits[r] = unsafe { super::super::rows::x86::u16_at(rows[r].add(at)) };
        }
        // SAFETY: 32 bytes of a local array.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) })
    }

    /// Four codes of an activation in every lane.
    ///
    /// # Safety
    /// Four bytes can be read at `p`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) unsafe fn four_codes(p: *const i8) -> __m512i {
        // SAFETY: by the caller.
        _mm512_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
    }
}
