//! Formats of 32-element blocks under one half-precision scale: w = scale * (code - ZERO).
//!
//! The sum of a block, Σ (code - ZERO) * x_code, is exact in i32. Blocks are added in order, each with one fused
//! multiply-add: acc = sum * (w_scale * x_scale) + acc. The portable version rounds the product first.

use super::act::{Act, ActData};
use super::rows::{GROUP, group_rows};
use super::{PanelKernel, Work};
use crate::cpu::isa::{Isa, IsaLevel};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

/// Such a format. The scale lies at the start of a block.
///
/// # Safety
/// `codes_avx2` reads no more than `BYTES` bytes.
pub(super) unsafe trait Blocks32: 'static {
    /// Bytes of a block.
    const BYTES: usize;
    /// The code that stands for 0.
    const ZERO: i32;
    /// Codes of a block, one a byte.
    fn codes(block: &[u8], out: &mut [u8; 32]);
    /// The same in a vector.
    ///
    /// # Safety
    /// `BYTES` bytes can be read at `block`, and the machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn codes_avx2(block: *const u8) -> __m256i;
    /// Codes of two blocks: elements 0..16 of both, then elements 16..32 of both.
    ///
    /// # Safety
    /// `BYTES` bytes can be read at both, and the machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pair_avx2(a: *const u8, b: *const u8) -> (__m256i, __m256i);
}

/// Codes, scales and sums of one token.
#[derive(Clone, Copy)]
struct Token {
    codes: *const i8,
    scales: *const f32,
    sums: *const f32,
}

fn token(act: &Act<'_>, t: usize) -> Token {
    let ActData::Q8 { codes, scales, block_sums, .. } = act.data else { unreachable!("checked before the run") };
    let at = t * act.k;
    Token { codes: codes[at..].as_ptr(), scales: scales[at / 32..].as_ptr(), sums: block_sums[at / 32..].as_ptr() }
}

impl Token {
    /// The token from its next block on.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn next(self) -> Self {
        Self {
            codes: self.codes.wrapping_add(32),
            scales: self.scales.wrapping_add(1),
            sums: self.sums.wrapping_add(1),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn tokens<const N: usize>(act: &Act<'_>, t: usize) -> [Token; N] {
    // The last token is looked up for its bounds; the others lie evenly before it.
    token(act, t + N - 1);
    let mut all = [token(act, t); N];
    for i in 1..N {
        let last = all[i - 1];
        all[i] = Token {
            codes: last.codes.wrapping_add(act.k),
            scales: last.scales.wrapping_add(act.k / 32),
            sums: last.sums.wrapping_add(act.k / 32),
        };
    }
    all
}

pub(super) fn dequant<F: Blocks32>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(F::BYTES).zip(out.as_chunks_mut::<32>().0) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        let mut codes = [0u8; 32];
        F::codes(block, &mut codes);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = scale * (i32::from(code) - F::ZERO) as f32;
        }
    }
}

pub(super) fn rows<F: Blocks32>(work: &Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the Isa proves the machine has the instructions; `Work` proves rows and tokens are there.
    unsafe {
        match work.isa.level() {
            IsaLevel::Avx512 if work.isa.vnni() => return x86::rows_vnni::<F>(work),
            IsaLevel::Avx512 | IsaLevel::Avx2 => return x86::rows_avx2::<F>(work),
            IsaLevel::Portable => {}
        }
    }
    portable::<F>(work);
}

pub(super) fn panel<F: Blocks32>(isa: Isa) -> Option<PanelKernel> {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 && isa.vnni() {
        // SAFETY: the Isa proves the machine has the instructions.
        let run = |work: &Work<'_>, scratch: &mut [u8]| unsafe { x86::panel::<F>(work, scratch) };
        return Some(PanelKernel { run, scratch_bytes: |k| k * 16 + k / 32 * 64 });
    }
    let _ = isa;
    None
}

fn portable<F: Blocks32>(work: &Work<'_>) {
    let bytes = work.weight.format.row_bytes(work.weight.k);
    for row in work.first..work.first + work.rows {
        let data = &work.weight.data[row * bytes..(row + 1) * bytes];
        for t in 0..work.act.tokens {
            let ActData::Q8 { codes, scales, .. } = work.act.data else { unreachable!("checked before the run") };
            let (x, scales) = (&codes[t * work.act.k..], &scales[t * work.act.k / 32..]);
            let mut acc = 0.0f32;
            for ((block, x), x_scale) in data.chunks_exact(F::BYTES).zip(x.as_chunks::<32>().0).zip(scales) {
                let mut codes = [0u8; 32];
                F::codes(block, &mut codes);
                let sum: i32 = codes.iter().zip(x).map(|(w, x)| (i32::from(*w) - F::ZERO) * i32::from(*x)).sum();
                acc += sum as f32 * (half::f16::from_le_bytes([block[0], block[1]]).to_f32() * x_scale);
            }
            work.store(t, row, acc);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::panel::ROWS;
    use super::super::panel::x86::{four_codes, halves16, interleave, panel_rows};
    use super::super::rows::x86::{ahead, dwords, halves, low_halves, prefetch, sum4x2, sum8};
    use super::*;
    use std::arch::x86_64::*;

    /// Calls a tile for tokens from `t` on, as many at once as the constants allow.
    macro_rules! token_tiles {
        ($tokens:expr, $t:ident, [$($n:literal),*], $call:ident) => {
            let mut $t = 0;
            while $t < $tokens {
                let left = $tokens - $t;
                $(if left >= $n { $call!($n, $t); $t += $n; continue; })*
            }
        };
    }
    pub(in super::super) use token_tiles;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn rows_vnni<F: Blocks32>(work: &Work<'_>) {
        for row in (work.first..work.first + work.rows).step_by(GROUP) {
            let rows = group_rows(work, row);
            macro_rules! tile {
                // SAFETY: rows of the weight and tokens of the activation, of equal length.
                ($n:literal, $t:ident) => {
                    unsafe { tile_vnni::<F, $n>(work, &rows, row, $t) }
                };
            }
            token_tiles!(work.act.tokens, t, [3, 2, 1], tile);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile_vnni<F: Blocks32, const N: usize>(work: &Work<'_>, rows: &[*const u8; GROUP], row: usize, t: usize) {
        // One offset serves all rows: stepping eight pointers would cost as much as a vector of products.
        let mut at = 0;
        let mut next = work.row(row).wrapping_add(ahead(work.row_bytes));
        let mut x = tokens::<N>(&work.act, t);
        let mut acc = [_mm256_setzero_ps(); N];
        for _ in 0..work.act.k / 32 {
            // SAFETY: one more block of every row and token, as many as there are.
            unsafe {
                prefetch_step::<F>(&mut next);
                let mut codes = [(_mm256_setzero_si256(), _mm256_setzero_si256()); 4];
                for r in 0..4 {
                    codes[r] = F::pair_avx2(rows[r].wrapping_add(at), rows[r + 4].wrapping_add(at));
                }
                let scale = low_halves(dwords(rows, at));
                for i in 0..N {
                    let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(x[i].codes.cast()));
                    let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(x[i].codes.add(16).cast()));
                    let mut p = [_mm256_setzero_si256(); 4];
                    for r in 0..4 {
                        p[r] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes[r].0, low);
                        p[r] = _mm256_dpbusd_epi32(p[r], codes[r].1, high);
                    }
                    let sum = around_zero::<F>(_mm256_cvtepi32_ps(sum4x2(&p)), *x[i].sums);
                    acc[i] = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale, _mm256_set1_ps(*x[i].scales)), acc[i]);
                    x[i] = x[i].next();
                }
                at = usize::wrapping_add(at, F::BYTES);
            }
        }
        store8(work, row, t, &acc);
    }

    /// Σ code * x_code to Σ (code - ZERO) * x_code. All are whole numbers below 2^24, so nothing is rounded.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn around_zero<F: Blocks32>(sum: __m256, x_sum: f32) -> __m256 {
        _mm256_fnmadd_ps(_mm256_set1_ps(F::ZERO as f32), _mm256_set1_ps(x_sum), sum)
    }

    #[inline(always)]
    fn prefetch_step<F: Blocks32>(next: &mut *const u8) {
        // Lengths are rounded to whole lines by format, because a constant of the trait cannot be a length here.
        match F::BYTES {
            0..=18 => prefetch::<{ 18 * GROUP }>(*next),
            19..=22 => prefetch::<{ 22 * GROUP }>(*next),
            _ => prefetch::<{ 34 * GROUP }>(*next),
        }
        *next = next.wrapping_add(F::BYTES * GROUP);
    }

    #[target_feature(enable = "avx2")]
    pub(in super::super) fn store8(work: &Work<'_>, row: usize, t: usize, acc: &[__m256]) {
        for (i, acc) in acc.iter().enumerate() {
            let mut values = [0.0f32; GROUP];
            // SAFETY: eight values of a local array.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), *acc) };
            work.store_rows(t + i, row, &values);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn rows_avx2<F: Blocks32>(work: &Work<'_>) {
        for row in (work.first..work.first + work.rows).step_by(GROUP) {
            let rows = group_rows(work, row);
            for t in 0..work.act.tokens {
                // SAFETY: rows of the weight and a token of the activation, of equal length.
                unsafe { tile_avx2::<F>(work, &rows, row, t) };
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile_avx2<F: Blocks32>(work: &Work<'_>, rows: &[*const u8; GROUP], row: usize, t: usize) {
        let mut rows = *rows;
        let mut x = token(&work.act, t);
        let mut acc = _mm256_setzero_ps();
        for _ in 0..work.act.k / 32 {
            // SAFETY: one more block of every row and of the token, as many as there are.
            unsafe {
                let xs = _mm256_loadu_si256(x.codes.cast());
                let mut p = [_mm256_setzero_si256(); GROUP];
                for r in 0..GROUP {
                    p[r] = dot_avx2::<F>(F::codes_avx2(rows[r]), xs);
                }
                let mut sum = _mm256_cvtepi32_ps(sum8(&p));
                if F::ZERO != 128 {
                    sum = around_zero::<F>(sum, *x.sums);
                }
                let scale = _mm256_mul_ps(halves(&rows, 0), _mm256_set1_ps(*x.scales));
                acc = _mm256_fmadd_ps(sum, scale, acc);
                x = x.next();
                for r in 0..GROUP {
                    rows[r] = rows[r].wrapping_add(F::BYTES);
                }
            }
        }
        store8(work, row, t, &[acc]);
    }

    /// Eight partial sums of 32 products. Full bytes would overflow the 16-bit pair sums, so codes around 128 are made
    /// signed and their sign given to x, whose codes lie in -127..=127.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot_avx2<F: Blocks32>(codes: __m256i, x: __m256i) -> __m256i {
        let pairs = if F::ZERO == 128 {
            let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
        } else {
            _mm256_maddubs_epi16(codes, x)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn panel<F: Blocks32>(work: &Work<'_>, scratch: &mut [u8]) {
        let blocks = work.act.k / 32;
        let (codes, rest) = scratch.split_at_mut(blocks * 512);
        let (codes, scales) = (codes.as_mut_ptr(), rest.as_mut_ptr().cast::<f32>());
        assert!(rest.len() >= blocks * 64 && codes.addr().is_multiple_of(64), "scratch of a panel");
        let mut rows = panel_rows(work);
        for b in 0..blocks {
            // SAFETY: block b of every row; the scratch holds all blocks by the assertion.
            unsafe {
                let mut vectors = [_mm256_setzero_si256(); ROWS];
                for r in 0..ROWS {
                    vectors[r] = F::codes_avx2(rows[r]);
                }
                interleave(&vectors, codes.add(b * 512));
                _mm512_store_ps(scales.add(b * 16), halves16(&rows, 0));
                for r in 0..ROWS {
                    rows[r] = rows[r].wrapping_add(F::BYTES);
                }
            }
        }
        macro_rules! tile {
            // SAFETY: the scratch was filled above for all blocks; tokens of the activation.
            ($n:literal, $t:ident) => {
                unsafe { panel_tile::<F, $n>(work, codes, scales, $t) }
            };
        }
        token_tiles!(work.act.tokens, t, [8, 4, 2, 1], tile);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn panel_tile<F: Blocks32, const N: usize>(work: &Work<'_>, codes: *const u8, scales: *const f32, t: usize) {
        let (mut codes, mut scales) = (codes, scales);
        let mut x = tokens::<N>(&work.act, t);
        let mut acc = [_mm512_setzero_ps(); N];
        for _ in 0..work.act.k / 32 {
            // SAFETY: one more block of the panel and of N tokens, as many as there are.
            unsafe {
                let mut sum = [_mm512_setzero_si512(); N];
                for q in 0..8 {
                    let w = _mm512_load_si512(codes.add(q * 64).cast());
                    for i in 0..N {
                        sum[i] = _mm512_dpbusd_epi32(sum[i], w, four_codes(x[i].codes.add(q * 4)));
                    }
                }
                let scale = _mm512_load_ps(scales);
                for i in 0..N {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x[i].scales));
                    let sum = _mm512_cvtepi32_ps(sum[i]);
                    let sum = _mm512_fnmadd_ps(_mm512_set1_ps(F::ZERO as f32), _mm512_set1_ps(*x[i].sums), sum);
                    acc[i] = _mm512_fmadd_ps(sum, scale, acc[i]);
                    x[i] = x[i].next();
                }
                (codes, scales) = (codes.add(512), scales.add(16));
            }
        }
        store16(work, t, &acc);
    }

    #[target_feature(enable = "avx512f")]
    pub(in super::super) fn store16(work: &Work<'_>, t: usize, acc: &[__m512]) {
        for (i, acc) in acc.iter().enumerate() {
            let mut values = [0.0f32; ROWS];
            // SAFETY: sixteen values of a local array.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), *acc) };
            work.store_rows(t + i, work.first, &values);
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{store8, store16, token_tiles};
