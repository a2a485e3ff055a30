//! Formats of 256-element super-blocks: groups with small whole-number scales under half-precision factors.
//!
//! w = d * scale_g * code - dm * min_g. With 8-bit activations under one scale for the super-block, Σ scale_g * Σ code *
//! x_code and Σ min_g * Σ x_code are exact in i32; super-blocks are added in order:
//! acc = s * (d * x_scale) + acc, then acc = -(m * (dm * x_scale)) + acc, each one fused multiply-add. The portable
//! version rounds the products first.
//!
//! Scales and minimums are held for 16 groups of 16 whatever the format's own groups are.

use super::act::{Act, ActData};
use super::rows::{GROUP, group_rows};
use super::{PanelKernel, Work};
use crate::cpu::isa::{Isa, IsaLevel};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

/// Elements of a super-block.
pub(super) const ELEMS: usize = 256;

/// The small numbers of a super-block, for 16 groups of 16.
#[derive(Clone, Copy, Default)]
pub(super) struct Small {
    pub(super) scales: [i16; 16],
    pub(super) mins: [i16; 16],
}

/// Such a format.
///
/// # Safety
/// The vector readers read no more than `BYTES` bytes.
pub(super) unsafe trait Super256: 'static {
    /// Bytes of a super-block.
    const BYTES: usize;
    /// Where `d` lies: just before `dm`, or at the end of the block if both are one.
    const D_AT: usize;
    /// Where the half-precision factor of minimums lies.
    const DM_AT: usize;
    /// What that factor is multiplied by (a power of two, so exactly).
    const DM_TIMES: f32;
    /// Elements that share a scale: 16 or 32.
    const SHARE: usize;
    /// Codes of a super-block, one a byte.
    fn codes(block: &[u8], out: &mut [u8; ELEMS]);
    /// Scales and minimums.
    fn small(block: &[u8]) -> Small;
    /// Codes in vectors of 32.
    ///
    /// # Safety
    /// `BYTES` bytes can be read at `block`, and the machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn codes_avx2(block: *const u8) -> [__m256i; 8];
    /// Scales and minimums in vectors of 16 16-bit numbers.
    ///
    /// # Safety
    /// `BYTES` bytes can be read at `block`, and the machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn small_avx2(block: *const u8) -> (__m256i, __m256i);
    /// Eight scales and eight minimums, one a byte, of a format whose groups are of 32.
    ///
    /// # Safety
    /// `BYTES` bytes can be read at `block`.
    unsafe fn small_bytes(block: *const u8) -> (u64, u64) {
        let _ = block;
        (0, 0)
    }
}

#[derive(Clone, Copy)]
struct Token {
    codes: *const i8,
    scales: *const f32,
    sums: *const i16,
}

fn token(act: &Act<'_>, t: usize) -> Token {
    let ActData::Q8 { codes, scales, sums, .. } = act.data else { unreachable!("checked before the run") };
    let at = t * act.k;
    Token { codes: codes[at..].as_ptr(), scales: scales[at / ELEMS..].as_ptr(), sums: sums[at / 16..].as_ptr() }
}

impl Token {
    /// The token from its next super-block on.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn next(self) -> Self {
        Self {
            codes: self.codes.wrapping_add(ELEMS),
            scales: self.scales.wrapping_add(1),
            sums: self.sums.wrapping_add(16),
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
            scales: last.scales.wrapping_add(act.k / ELEMS),
            sums: last.sums.wrapping_add(act.k / 16),
        };
    }
    all
}

fn factors<F: Super256>(block: &[u8]) -> (f32, f32) {
    let half = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    (half(F::D_AT), half(F::DM_AT) * F::DM_TIMES)
}

pub(super) fn dequant<F: Super256>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(F::BYTES).zip(out.as_chunks_mut::<ELEMS>().0) {
        let (d, dm) = factors::<F>(block);
        let mut codes = [0u8; ELEMS];
        F::codes(block, &mut codes);
        let small = F::small(block);
        for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let (scale, min) = (f32::from(small.scales[i / 16]), f32::from(small.mins[i / 16]));
            *out = d * scale * f32::from(code) - dm * min;
        }
    }
}

pub(super) fn rows<F: Super256>(work: &Work<'_>) {
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

pub(super) fn panel<F: Super256>(isa: Isa) -> Option<PanelKernel> {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 && isa.vnni() {
        // SAFETY: the Isa proves the machine has the instructions.
        let run = |work: &Work<'_>, scratch: &mut [u8]| unsafe { x86::panel::<F>(work, scratch) };
        return Some(PanelKernel { run, scratch_bytes: |k| k / ELEMS * x86::Panel::bytes(F::SHARE) });
    }
    let _ = isa;
    None
}

fn portable<F: Super256>(work: &Work<'_>) {
    let bytes = work.weight.format.row_bytes(work.weight.k);
    for row in work.first..work.first + work.rows {
        let data = &work.weight.data[row * bytes..(row + 1) * bytes];
        for t in 0..work.act.tokens {
            work.store(t, row, portable_dot::<F>(data, &work.act, t));
        }
    }
}

fn portable_dot<F: Super256>(data: &[u8], act: &Act<'_>, t: usize) -> f32 {
    let ActData::Q8 { codes, scales, sums, .. } = act.data else { unreachable!("checked before the run") };
    let k = act.k;
    let (x, scales, sums) = (&codes[t * k..], &scales[t * k / ELEMS..], &sums[t * k / 16..]);
    let mut acc = 0.0f32;
    let blocks = data.chunks_exact(F::BYTES).zip(x.as_chunks::<ELEMS>().0).zip(scales).zip(sums.as_chunks::<16>().0);
    for (((block, x), x_scale), sums) in blocks {
        let mut codes = [0u8; ELEMS];
        F::codes(block, &mut codes);
        let small = F::small(block);
        let (mut scaled, mut mins) = (0i32, 0i32);
        for (g, (codes, x)) in codes.as_chunks::<16>().0.iter().zip(x.as_chunks::<16>().0).enumerate() {
            let dot: i32 = codes.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
            scaled += i32::from(small.scales[g]) * dot;
            mins += i32::from(small.mins[g]) * i32::from(sums[g]);
        }
        let (d, dm) = factors::<F>(block);
        acc += scaled as f32 * (d * x_scale);
        acc -= mins as f32 * (dm * x_scale);
    }
    acc
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::blocks::{store8, store16, token_tiles};
    use super::super::panel::ROWS;
    use super::super::panel::x86::{four_codes, halves16, interleave, panel_rows};
    use super::super::rows::x86::{ahead, dwords, halves, high_halves, low_halves, prefetch, sum8};
    use super::*;
    use std::arch::x86_64::*;

    /// For 32 elements: the scale of the first 16 in the lower half's lanes, that of the others in the upper half's.
    /// `j` counts such pairs of groups within the 8 groups that `scales` holds in both halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn spread(scales: __m256i, j: i32) -> __m256i {
        let pick = |group: i32| (2 * group + 256 * (2 * group + 1)) * 0x10001;
        let (a, b) = (pick(2 * j), pick(2 * j + 1));
        _mm256_shuffle_epi8(scales, _mm256_setr_epi32(a, a, a, a, b, b, b, b))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn spread_all(scales: __m256i) -> [__m256i; 8] {
        let low = _mm256_permute2x128_si256::<0x00>(scales, scales);
        let high = _mm256_permute2x128_si256::<0x11>(scales, scales);
        [
            spread(low, 0),
            spread(low, 1),
            spread(low, 2),
            spread(low, 3),
            spread(high, 0),
            spread(high, 1),
            spread(high, 2),
            spread(high, 3),
        ]
    }

    /// The row kernel for one set of instructions; `$pairs` adds products of 16-bit pairs to 32-bit sums.
    macro_rules! row_kernel {
        ($rows:ident, $tile:ident, $features:literal, $tokens:tt, $pairs:expr) => {
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $rows<F: Super256>(work: &Work<'_>) {
                for row in (work.first..work.first + work.rows).step_by(GROUP) {
                    let rows = group_rows(work, row);
                    macro_rules! tile {
                        // SAFETY: rows of the weight and tokens of the activation, of equal length.
                        ($n:literal, $t:ident) => {
                            unsafe { $tile::<F, $n>(work, &rows, row, $t) }
                        };
                    }
                    token_tiles!(work.act.tokens, t, $tokens, tile);
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn $tile<F: Super256, const N: usize>(
                work: &Work<'_>,
                rows: &[*const u8; GROUP],
                row: usize,
                t: usize,
            ) {
                let mut rows = *rows;
                let mut x = tokens::<N>(&work.act, t);
                let mut acc = [_mm256_setzero_ps(); N];
                for _ in 0..work.act.k / ELEMS {
                    // SAFETY: one more super-block of every row and token, as many as there are.
                    unsafe {
                        let mut scaled = [[_mm256_setzero_si256(); GROUP]; N];
                        let mut mins = [[_mm256_setzero_si256(); GROUP]; N];
                        for r in 0..GROUP {
                            let codes = F::codes_avx2(rows[r]);
                            let (scale, min) = F::small_avx2(rows[r]);
                            let scale = spread_all(scale);
                            for i in 0..N {
                                let mut sum = _mm256_setzero_si256();
                                for j in 0..8 {
                                    let xs = _mm256_loadu_si256(x[i].codes.add(j * 32).cast());
                                    sum = $pairs(sum, _mm256_maddubs_epi16(codes[j], xs), scale[j]);
                                }
                                scaled[i][r] = sum;
                                mins[i][r] = _mm256_madd_epi16(min, _mm256_loadu_si256(x[i].sums.cast()));
                            }
                        }
                        let d = halves(&rows, F::D_AT);
                        let dm = _mm256_mul_ps(halves(&rows, F::DM_AT), _mm256_set1_ps(F::DM_TIMES));
                        for i in 0..N {
                            let x_scale = _mm256_set1_ps(*x[i].scales);
                            let scaled = _mm256_cvtepi32_ps(sum8(&scaled[i]));
                            let mins = _mm256_cvtepi32_ps(sum8(&mins[i]));
                            acc[i] = _mm256_fmadd_ps(scaled, _mm256_mul_ps(d, x_scale), acc[i]);
                            acc[i] = _mm256_fnmadd_ps(mins, _mm256_mul_ps(dm, x_scale), acc[i]);
                            x[i] = x[i].next();
                        }
                        for r in 0..GROUP {
                            rows[r] = rows[r].wrapping_add(F::BYTES);
                        }
                    }
                }
                store8(work, row, t, &acc);
            }
        };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn rows_vnni<F: Super256>(work: &Work<'_>) {
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
    unsafe fn tile_vnni<F: Super256, const N: usize>(work: &Work<'_>, rows: &[*const u8; GROUP], row: usize, t: usize) {
        let mut at = 0;
        let mut next = work.row(row).wrapping_add(ahead(work.row_bytes));
        let mut x = tokens::<N>(&work.act, t);
        let mut acc = [_mm256_setzero_ps(); N];
        for _ in 0..work.act.k / ELEMS {
            // SAFETY: one more super-block of every row and token, as many as there are.
            unsafe {
                let mut scaled = [[_mm256_setzero_si256(); GROUP]; N];
                let mut mins = [[_mm256_setzero_si256(); GROUP]; N];
                let mut sums = [_mm256_setzero_si256(); N];
                for i in 0..N {
                    sums[i] = _mm256_loadu_si256(x[i].sums.cast());
                    if F::SHARE == 32 {
                        sums[i] = _mm256_madd_epi16(sums[i], _mm256_set1_epi16(1));
                    }
                }
                for r in 0..GROUP {
                    let block = rows[r].wrapping_add(at);
                    if F::BYTES <= 192 {
                        prefetch::<192>(next)
                    } else {
                        prefetch::<256>(next)
                    }
                    next = next.wrapping_add(F::BYTES);
                    let codes = F::codes_avx2(block);
                    // Written out here: as a function the compiler would call it, which empties all registers.
                    let (scale, min) = if F::SHARE == 32 {
                        let (scales, mins) = F::small_bytes(block);
                        let scales = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(scales as i64));
                        let scales = _mm256_broadcastsi128_si256(scales);
                        let mut each = [scales; 8];
                        for j in 0..8 {
                            // Bytes 2j and 2j + 1 of the eight 16-bit scales, in every 16-bit lane.
                            let pick = _mm256_set1_epi16((0x0100 + j * 0x0202) as i16);
                            each[j] = _mm256_shuffle_epi8(scales, pick);
                        }
                        (each, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(mins as i64)))
                    } else {
                        let (scales, mins) = F::small_avx2(block);
                        (spread_all(scales), mins)
                    };
                    for i in 0..N {
                        // Two chains, each half as long.
                        let mut sum = [_mm256_setzero_si256(); 2];
                        for j in 0..8 {
                            let xs = _mm256_loadu_si256(x[i].codes.add(j * 32).cast());
                            sum[j % 2] = _mm256_dpwssd_epi32(sum[j % 2], _mm256_maddubs_epi16(codes[j], xs), scale[j]);
                        }
                        scaled[i][r] = _mm256_add_epi32(sum[0], sum[1]);
                        // Eight products, of 32-bit pairs of sums or of sums themselves, that add up to the same.
                        mins[i][r] = match F::SHARE {
                            32 => _mm256_mullo_epi32(min, sums[i]),
                            _ => _mm256_madd_epi16(min, sums[i]),
                        };
                    }
                }
                // The factors of Q6_K end the block, so they are read as the upper half of the last four bytes.
                let (d, dm) = if F::D_AT == F::DM_AT {
                    let d = high_halves(dwords(rows, at.wrapping_add(const { F::D_AT.saturating_sub(2) })));
                    (d, d)
                } else {
                    let both = dwords(rows, at.wrapping_add(F::D_AT));
                    (low_halves(both), high_halves(both))
                };
                let dm = _mm256_mul_ps(dm, _mm256_set1_ps(F::DM_TIMES));
                for i in 0..N {
                    let x_scale = _mm256_set1_ps(*x[i].scales);
                    let scaled = _mm256_cvtepi32_ps(sum8(&scaled[i]));
                    let mins = _mm256_cvtepi32_ps(sum8(&mins[i]));
                    acc[i] = _mm256_fmadd_ps(scaled, _mm256_mul_ps(d, x_scale), acc[i]);
                    acc[i] = _mm256_fnmadd_ps(mins, _mm256_mul_ps(dm, x_scale), acc[i]);
                    x[i] = x[i].next();
                }
                at = usize::wrapping_add(at, F::BYTES);
            }
        }
        store8(work, row, t, &acc);
    }

    row_kernel!(rows_avx2, tile_avx2, "avx2,fma,f16c", [2, 1], |sum, pairs, scale| _mm256_add_epi32(
        sum,
        _mm256_madd_epi16(pairs, scale)
    ));

    /// Where the parts of a super-block lie in a panel: codes `[64][16 rows][4]`, scales `[256 / share][16]` i32,
    /// minimums `[8][16][2]` i16, d `[16]` f32, dm `[16]` f32.
    pub(super) struct Panel;

    impl Panel {
        const SCALES: usize = 64 * 64;
        const fn mins(share: usize) -> usize {
            Self::SCALES + ELEMS / share * 64
        }
        const fn d(share: usize) -> usize {
            Self::mins(share) + 8 * 64
        }
        pub(super) const fn bytes(share: usize) -> usize {
            Self::d(share) + 2 * 64
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn panel<F: Super256>(work: &Work<'_>, scratch: &mut [u8]) {
        let blocks = work.act.k / ELEMS;
        let bytes = Panel::bytes(F::SHARE);
        let base = scratch.as_mut_ptr();
        assert!(scratch.len() >= blocks * bytes && base.addr().is_multiple_of(64), "scratch of a panel");
        let rows = panel_rows(work);
        for b in 0..blocks {
            // SAFETY: super-block b of every row; the scratch holds all super-blocks by the assertion.
            unsafe { fill::<F>(&rows.map(|row| row.wrapping_add(b * F::BYTES)), base.add(b * bytes)) };
        }
        macro_rules! tile {
            // SAFETY: the scratch was filled above for all super-blocks; tokens of the activation.
            ($n:literal, $t:ident) => {
                unsafe { panel_tile::<F, $n>(work, base, $t) }
            };
        }
        token_tiles!(work.act.tokens, t, [8, 4, 2, 1], tile);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
    unsafe fn fill<F: Super256>(rows: &[*const u8; ROWS], out: *mut u8) {
        let share = F::SHARE;
        let mut codes = [[_mm256_setzero_si256(); ROWS]; 8];
        for r in 0..ROWS {
            // SAFETY: the super-block of every row, and its place in the panel, by the caller.
            unsafe {
                let vectors = F::codes_avx2(rows[r]);
                for j in 0..8 {
                    codes[j][r] = vectors[j];
                }
                let (mut scales, mut mins) = ([0i16; 16], [0i16; 16]);
                let (s, m) = F::small_avx2(rows[r]);
                _mm256_storeu_si256(scales.as_mut_ptr().cast(), s);
                _mm256_storeu_si256(mins.as_mut_ptr().cast(), m);
                let scale_at = out.add(Panel::SCALES).cast::<i32>().add(r);
                for g in 0..ELEMS / share {
                    *scale_at.add(g * ROWS) = i32::from(scales[g * share / 16]);
                }
                let min_at = out.add(const { Panel::mins(F::SHARE) }).cast::<i16>().add(2 * r);
                for g in 0..8 {
                    *min_at.add(g * ROWS * 2) = mins[2 * g];
                    *min_at.add(g * ROWS * 2 + 1) = mins[2 * g + 1];
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            for j in 0..8 {
                interleave(&codes[j], out.add(j * 512));
            }
            let d = out.add(const { Panel::d(F::SHARE) }).cast::<f32>();
            _mm512_store_ps(d, halves16(rows, F::D_AT));
            _mm512_store_ps(d.add(16), _mm512_mul_ps(halves16(rows, F::DM_AT), _mm512_set1_ps(F::DM_TIMES)));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn panel_tile<F: Super256, const N: usize>(work: &Work<'_>, panel: *const u8, t: usize) {
        let mut panel = panel;
        let mut x = tokens::<N>(&work.act, t);
        let mut acc = [_mm512_setzero_ps(); N];
        for _ in 0..work.act.k / ELEMS {
            // SAFETY: one more super-block of the panel and of N tokens, as many as there are.
            unsafe {
                let mut scaled = [_mm512_setzero_si512(); N];
                let mut codes = panel;
                let mut scales = panel.add(Panel::SCALES);
                let mut at = 0;
                for _ in 0..ELEMS / F::SHARE {
                    let mut dot = [_mm512_setzero_si512(); N];
                    for q in 0..F::SHARE / 4 {
                        let w = _mm512_load_si512(codes.add(q * 64).cast());
                        for i in 0..N {
                            dot[i] = _mm512_dpbusd_epi32(dot[i], w, four_codes(x[i].codes.wrapping_add(at).add(q * 4)));
                        }
                    }
                    let scale = _mm512_load_si512(scales.cast());
                    for i in 0..N {
                        scaled[i] = _mm512_add_epi32(scaled[i], _mm512_mullo_epi32(dot[i], scale));
                    }
                    at = usize::wrapping_add(at, F::SHARE);
                    (codes, scales) = (codes.add(F::SHARE / 4 * 64), scales.add(64));
                }
                let mut mins = [_mm512_setzero_si512(); N];
                for p in 0..8 {
                    let min = _mm512_load_si512(panel.add(const { Panel::mins(F::SHARE) }).add(p * 64).cast());
                    for i in 0..N {
                        let sums = x[i].sums.add(2 * p).cast::<i32>().read_unaligned();
                        mins[i] = _mm512_dpwssd_epi32(mins[i], min, _mm512_set1_epi32(sums));
                    }
                }
                let d = panel.add(const { Panel::d(F::SHARE) }).cast::<f32>();
                let (d, dm) = (_mm512_load_ps(d), _mm512_load_ps(d.add(16)));
                for i in 0..N {
                    let x_scale = _mm512_set1_ps(*x[i].scales);
                    acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(scaled[i]), _mm512_mul_ps(d, x_scale), acc[i]);
                    acc[i] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins[i]), _mm512_mul_ps(dm, x_scale), acc[i]);
                    x[i] = x[i].next();
                }
                panel = panel.add(const { Panel::bytes(F::SHARE) });
            }
        }
        store16(work, t, &acc);
    }
}

/// The eight 6-bit scales and minimums of Q4_K and Q5_K, in twelve bytes, each for two groups of 16.
pub(super) fn six_bit_small(packed: &[u8]) -> Small {
    let mut small = Small::default();
    for j in 0..8 {
        let (scale, min) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            ((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4)
        };
        for g in [2 * j, 2 * j + 1] {
            small.scales[g] = i16::from(scale);
            small.mins[g] = i16::from(min);
        }
    }
    small
}

/// The same as two groups of eight bytes.
///
/// # Safety
/// Twelve bytes can be read at `packed`.
#[inline(always)]
pub(super) unsafe fn six_bit_bytes(packed: *const u8) -> (u64, u64) {
    // SAFETY: by the caller.
    let [a, b, c] = unsafe { packed.cast::<[u32; 3]>().read_unaligned() };
    let scales_high = (c & 0x0f0f_0f0f) | ((a >> 6) & 0x0303_0303) << 4;
    let mins_high = (c >> 4 & 0x0f0f_0f0f) | ((b >> 6) & 0x0303_0303) << 4;
    (u64::from(a & 0x3f3f_3f3f) | u64::from(scales_high) << 32, u64::from(b & 0x3f3f_3f3f) | u64::from(mins_high) << 32)
}

/// The same in vectors of 16-bit numbers.
///
/// # Safety
/// Twelve bytes can be read at `packed`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn six_bit_small_avx2(packed: *const u8) -> (__m256i, __m256i) {
    use std::arch::x86_64::*;
    // SAFETY: by the caller.
    let (scales, mins) = unsafe { six_bit_bytes(packed) };
    let all = _mm_set_epi64x(mins as i64, scales as i64);
    (_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(all, all)), _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(all, all)))
}
