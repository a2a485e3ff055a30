//! f32 matrix product: y[T][N] = x[T][K] · W[N][K]ᵀ, W given row by row in whatever it is stored in.
//!
//! A chunk of work is a panel of [`PANEL`] rows of W: its rows are dequantised, transposed into `[K][PANEL]` and
//! multiplied with tiles of x rows held in registers. A result is one fused multiply-add chain per [`DEPTH`] steps of
//! K, chains added in order, so it depends neither on T nor on the number of threads.

use crate::cpu::shared::Shared;
use crate::cpu::{Isa, IsaLevel, Pool, PoolError};
use std::ops::Range;

/// Rows of W in a panel: two AVX-512 registers wide.
pub const PANEL: usize = 32;

/// Steps of K in one chain; a panel of them stays in the second-level cache.
const DEPTH: usize = 256;

/// Rows of x in a register tile: 12 rows by two registers leaves registers for the panel.
const TILE: usize = 12;

/// Reads rows of a weight as f32: (rows, out).
pub type ReadRows<'a> = dyn Fn(Range<usize>, &mut [f32]) + Sync + 'a;

/// Computes y from x and W.
///
/// # Errors
/// A worker failed.
///
/// # Panics
/// Slices of other sizes than `[t, k]` and `[t, n]`.
pub fn gemm(
    pool: &Pool,
    isa: Isa,
    sizes: (usize, usize, usize),
    x: &[f32],
    weight: &ReadRows<'_>,
    y: &mut [f32],
) -> Result<(), PoolError> {
    let (t, n, k) = sizes;
    assert!(x.len() == t * k && y.len() == t * n, "x is [t, k] and y is [t, n]");
    if t == 0 {
        return Ok(());
    }
    let out = Shared::new(y);
    pool.run(n.div_ceil(PANEL), &|chunk, _| {
        let rows = chunk * PANEL..((chunk + 1) * PANEL).min(n);
        let mut read = vec![0.0f32; rows.len() * k];
        weight(rows.clone(), &mut read);
        let panel = transpose(&read, rows.len(), k);
        let mut tile = vec![0.0f32; TILE * PANEL];
        for first in (0..t).step_by(TILE) {
            let m = TILE.min(t - first);
            tile.fill(0.0);
            for from in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - from);
                multiply(isa, m, depth, &x[first * k + from..], k, &panel[from * PANEL..], &mut tile);
            }
            for i in 0..m {
                // SAFETY: chunks own disjoint columns `rows` of every row of y.
                let row = unsafe { out.part((first + i) * n + rows.start, rows.len()) };
                row.copy_from_slice(&tile[i * PANEL..i * PANEL + rows.len()]);
            }
        }
    })
}

/// `[rows][k]` to `[k][PANEL]`, missing rows zero.
fn transpose(read: &[f32], rows: usize, k: usize) -> Vec<f32> {
    let mut panel = vec![0.0f32; k * PANEL];
    // Blocks of 16 steps keep both sides within a few cache lines.
    for from in (0..k).step_by(16) {
        let to = (from + 16).min(k);
        for (r, row) in read.chunks_exact(k).enumerate().take(rows) {
            for (i, v) in row[from..to].iter().enumerate() {
                panel[(from + i) * PANEL + r] = *v;
            }
        }
    }
    panel
}

/// Adds x[0..m][0..depth] · panel to the tile: `[TILE][PANEL]`.
fn multiply(isa: Isa, m: usize, depth: usize, x: &[f32], stride: usize, panel: &[f32], tile: &mut [f32]) {
    assert!(x.len() >= (m - 1) * stride + depth && panel.len() >= depth * PANEL && tile.len() >= m * PANEL);
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        // SAFETY: the level says the machine has AVX-512F; bounds asserted above.
        IsaLevel::Avx512 => return unsafe { x86::rows_avx512(m, depth, x.as_ptr(), stride, panel.as_ptr(), tile) },
        // SAFETY: the level says the machine has AVX2 and FMA; bounds asserted above.
        IsaLevel::Avx2 => return unsafe { x86::rows_avx2(m, depth, x.as_ptr(), stride, panel.as_ptr(), tile) },
        IsaLevel::Portable => {}
    }
    let _ = isa;
    for i in 0..m {
        let row = &mut tile[i * PANEL..(i + 1) * PANEL];
        for (v, w) in x[i * stride..i * stride + depth].iter().zip(panel.chunks_exact(PANEL)) {
            row.iter_mut().zip(w).for_each(|(out, w)| *out += v * w);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Register tiles. Each function's contract: x has `m` rows of `depth` elements at `stride`, panel `[depth][PANEL]`,
    //! tile `m` rows of `PANEL`.

    #![allow(clippy::needless_range_loop)] // Iterators with a counter keep the arrays of sums in memory.

    use super::{PANEL, TILE};
    use std::arch::x86_64::{
        __m256, __m512, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };

    /// # Safety
    /// The machine has AVX-512F; sizes as the module says.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn rows_avx512(
        m: usize,
        depth: usize,
        x: *const f32,
        stride: usize,
        panel: *const f32,
        tile: &mut [f32],
    ) {
        let mut done = 0;
        macro_rules! tiles {
            ($($rows:literal),+) => {
                $(while m - done >= $rows {
                    // SAFETY: rows done .. done + $rows exist.
                    unsafe {
                        tile_avx512::<$rows>(depth, x.add(done * stride), stride, panel, tile.as_mut_ptr().add(done * PANEL));
                    }
                    done += $rows;
                })+
            };
        }
        tiles!(12, 8, 4, 2, 1);
    }

    /// # Safety
    /// As [`rows_avx512`], for exactly `M` rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_avx512<const M: usize>(
        depth: usize,
        x: *const f32,
        stride: usize,
        panel: *const f32,
        tile: *mut f32,
    ) {
        const { assert!(M <= TILE) };
        // SAFETY: all pointers stay within the sizes the contract states.
        unsafe {
            let mut sums: [[__m512; 2]; M] = std::array::from_fn(|i| {
                [_mm512_loadu_ps(tile.add(i * PANEL)), _mm512_loadu_ps(tile.add(i * PANEL + 16))]
            });
            // Pointers that step, and counted loops over arrays: both keep the sums in registers.
            let mut rows: [*const f32; M] = std::array::from_fn(|i| x.add(i * stride));
            let mut panel = panel;
            for _ in 0..depth {
                let (a, b) = (_mm512_loadu_ps(panel), _mm512_loadu_ps(panel.add(16)));
                for i in 0..M {
                    let v = _mm512_set1_ps(*rows[i]);
                    sums[i][0] = _mm512_fmadd_ps(v, a, sums[i][0]);
                    sums[i][1] = _mm512_fmadd_ps(v, b, sums[i][1]);
                    rows[i] = rows[i].add(1);
                }
                panel = panel.add(PANEL);
            }
            for i in 0..M {
                _mm512_storeu_ps(tile.add(i * PANEL), sums[i][0]);
                _mm512_storeu_ps(tile.add(i * PANEL + 16), sums[i][1]);
            }
        }
    }

    /// # Safety
    /// The machine has AVX2 and FMA; sizes as the module says.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn rows_avx2(m: usize, depth: usize, x: *const f32, stride: usize, panel: *const f32, tile: &mut [f32]) {
        for half in [0, PANEL / 2] {
            let mut done = 0;
            // SAFETY: rows done .. exist; each half of a panel row is 16 wide.
            unsafe {
                let (panel, tile) = (panel.add(half), tile.as_mut_ptr().add(half));
                while m - done >= 6 {
                    tile_avx2::<6>(depth, x.add(done * stride), stride, panel, tile.add(done * PANEL));
                    done += 6;
                }
                while m - done >= 2 {
                    tile_avx2::<2>(depth, x.add(done * stride), stride, panel, tile.add(done * PANEL));
                    done += 2;
                }
                while m > done {
                    tile_avx2::<1>(depth, x.add(done * stride), stride, panel, tile.add(done * PANEL));
                    done += 1;
                }
            }
        }
    }

    /// # Safety
    /// As [`rows_avx2`], for exactly `M` rows and 16 columns.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile_avx2<const M: usize>(depth: usize, x: *const f32, stride: usize, panel: *const f32, tile: *mut f32) {
        // SAFETY: all pointers stay within the sizes the contract states.
        unsafe {
            let mut sums: [[__m256; 2]; M] = std::array::from_fn(|i| {
                [_mm256_loadu_ps(tile.add(i * PANEL)), _mm256_loadu_ps(tile.add(i * PANEL + 8))]
            });
            let mut rows: [*const f32; M] = std::array::from_fn(|i| x.add(i * stride));
            let mut panel = panel;
            for _ in 0..depth {
                let (a, b) = (_mm256_loadu_ps(panel), _mm256_loadu_ps(panel.add(8)));
                for i in 0..M {
                    let v = _mm256_broadcast_ss(&*rows[i]);
                    sums[i][0] = _mm256_fmadd_ps(v, a, sums[i][0]);
                    sums[i][1] = _mm256_fmadd_ps(v, b, sums[i][1]);
                    rows[i] = rows[i].add(1);
                }
                panel = panel.add(PANEL);
            }
            for i in 0..M {
                _mm256_storeu_ps(tile.add(i * PANEL), sums[i][0]);
                _mm256_storeu_ps(tile.add(i * PANEL + 8), sums[i][1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn equals_f64_loops_on_odd_sizes_and_every_level() {
        let pool = Pool::new(3).unwrap();
        for isa in Isa::testable() {
            for (t, n, k) in [(1, 1, 1), (1, 33, 300), (5, 31, 17), (13, 64, 257), (25, 70, 512), (12, 100, 1000)] {
                let (x, w) = (random(t * k, 1), random(n * k, 2));
                let mut y = vec![f32::NAN; t * n];
                let read = |rows: Range<usize>, out: &mut [f32]| out.copy_from_slice(&w[rows.start * k..rows.end * k]);
                gemm(&pool, isa, (t, n, k), &x, &read, &mut y).unwrap();
                for (i, y) in y.iter().enumerate() {
                    let (row, col) = (i / n, i % n);
                    let pairs = x[row * k..].iter().zip(&w[col * k..]).take(k);
                    let exact: f64 = pairs.clone().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let size: f64 = pairs.map(|(a, b)| f64::from(*a * *b).abs()).sum();
                    // k roundings of half an ulp of the running sum, which |x|·|w| bounds.
                    let limit = size * k as f64 * f64::from(f32::EPSILON) / 2.0 + 1e-12;
                    assert!((f64::from(*y) - exact).abs() <= limit, "{} {t}x{n}x{k} at {i}: {y} {exact}", isa.name());
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_mates_or_on_threads() {
        let (t, n, k) = (29, 65, 700);
        let (x, w) = (random(t * k, 3), random(n * k, 4));
        let read = |rows: Range<usize>, out: &mut [f32]| out.copy_from_slice(&w[rows.start * k..rows.end * k]);
        let mut all = vec![0.0; t * n];
        gemm(&Pool::new(4).unwrap(), Isa::detect(), (t, n, k), &x, &read, &mut all).unwrap();
        let alone = Pool::new(1).unwrap();
        for row in 0..t {
            let mut y = vec![0.0; n];
            gemm(&alone, Isa::detect(), (1, n, k), &x[row * k..(row + 1) * k], &read, &mut y).unwrap();
            assert_eq!(y, all[row * n..(row + 1) * n], "row {row}");
        }
    }
}
