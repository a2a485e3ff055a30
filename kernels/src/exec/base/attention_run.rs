//! One run of positions added to the running softmax of a tile of query rows.
//!
//! Scores are products of a few queries with a few keys held in registers, and so are weighted sums of values; between
//! them the softmax works on whole rows of scores. A score is the sum of 16 partial sums along the head in a fixed
//! tree; weights of a run are summed in 16 partial sums; values are added in order of position. None of this depends on
//! which rows share a tile. Without AVX-512 the same is done row by row.

use super::lanes::{LANES, axpy, axpy4, dot, dot4, exp, fold, largest, per_isa};
use crate::cpu::{Isa, IsaLevel};
use crit_core::model::program::ops::attention::Attention;
use std::ops::Range;

/// Positions of a run: keys and values of so many stay in the second-level cache.
pub(super) const RUN: usize = 64;

/// A run's keys and values as f32, from offset `first` of the run on.
pub(super) struct Rows<'a> {
    /// Offset of the first key within the run.
    pub(super) first: usize,
    /// `[count][key_dim]`.
    pub(super) keys: &'a [f32],
    /// `[count][value_dim]`.
    pub(super) values: &'a [f32],
    /// For each query row the offsets within the run it sees.
    pub(super) visible: &'a [Range<usize>],
}

/// Adds a run to the softmax of all query rows: `queries` `[rows][key_dim]`, scaled; `state` maxima and sums `[rows]`;
/// `acc` `[rows][value_dim]`.
#[inline(never)]
pub(super) fn attend(
    isa: Isa,
    op: &Attention,
    queries: &[f32],
    run: &Rows<'_>,
    state: (&mut [f32], &mut [f32]),
    acc: &mut [f32],
) {
    // A few rows of scores at a time, so that they stay in the first-level cache.
    const ROWS: usize = 16;
    let mut scores = [0.0f32; ROWS * RUN];
    let rows = run.visible.len();
    let (maxima, sums) = state;
    for from in (0..rows).step_by(ROWS) {
        let to = (from + ROWS).min(rows);
        let queries = &queries[from * op.key_dim..to * op.key_dim];
        let acc = &mut acc[from * op.value_dim..to * op.value_dim];
        let visible = &run.visible[from..to];
        let scores = &mut scores[..(to - from) * RUN];
        products(isa, queries, run, op.key_dim, scores);
        soften(isa, op, visible, scores, &mut maxima[from..to], &mut sums[from..to], acc);
        weigh(isa, scores, run, op.value_dim, acc);
    }
}

/// Scores of every query with every key of the run, at `[row][RUN]`.
fn products(isa: Isa, queries: &[f32], run: &Rows<'_>, dim: usize, scores: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 {
        // SAFETY: the Isa proves the machine has AVX-512; slices carry their sizes.
        return unsafe { x86::products(queries, run, dim, scores) };
    }
    products_plain(isa, queries, run.keys, dim, &mut scores[run.first..]);
}

/// Weighted values added to every row.
fn weigh(isa: Isa, weights: &[f32], run: &Rows<'_>, dim: usize, acc: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.level() == IsaLevel::Avx512 {
        // SAFETY: the Isa proves the machine has AVX-512; slices carry their sizes.
        return unsafe { x86::weigh(weights, run, dim, acc) };
    }
    weigh_plain(isa, &weights[run.first..], run.values, dim, acc);
}

per_isa! {
    /// Turns scores into weights relative to the row's new maximum; shrinks what was summed under the old one.
    fn soften = soften_body(
        op: &Attention,
        visible: &[Range<usize>],
        scores: &mut [f32],
        maxima: &mut [f32],
        sums: &mut [f32],
        acc: &mut [f32],
    )
}

#[inline(always)]
fn soften_body<const FMA: bool>(
    op: &Attention,
    visible: &[Range<usize>],
    scores: &mut [f32],
    maxima: &mut [f32],
    sums: &mut [f32],
    acc: &mut [f32],
) {
    let rows = scores.as_chunks_mut::<RUN>().0.iter_mut().zip(acc.chunks_exact_mut(op.value_dim)).zip(visible);
    for (((scores, acc), visible), (max, sum)) in rows.zip(maxima.iter_mut().zip(sums)) {
        if visible.is_empty() {
            scores.fill(0.0);
            continue;
        }
        scores[..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..].fill(f32::NEG_INFINITY);
        if let Some(cap) = op.softcap {
            // tanh u = 1 - 2 / (e^2u + 1); -inf stays below every score of the cap.
            for score in scores[visible.clone()].iter_mut() {
                *score = cap * (1.0 - 2.0 / (exp::<FMA>(2.0 * *score / cap) + 1.0));
            }
        }
        let top = largest(&scores[..], *max);
        let shrink = exp::<FMA>(*max - top);
        let mut lanes = [0.0f32; LANES];
        for part in scores.as_chunks_mut::<LANES>().0 {
            for (s, lane) in part.iter_mut().zip(&mut lanes) {
                *s = exp::<FMA>(*s - top);
                *lane += *s;
            }
        }
        *sum = *sum * shrink + fold(lanes, |a, b| a + b);
        if *max != top {
            *max = top;
            acc.iter_mut().for_each(|v| *v *= shrink);
        }
    }
}

per_isa! {
    /// Scores row by row.
    fn products_plain = products_body(queries: &[f32], keys: &[f32], dim: usize, scores: &mut [f32])
}

#[inline(always)]
fn products_body<const FMA: bool>(queries: &[f32], keys: &[f32], dim: usize, scores: &mut [f32]) {
    for (query, scores) in queries.chunks_exact(dim).zip(scores.chunks_mut(RUN)) {
        let count = keys.len() / dim;
        let key = |j: usize| &keys[j * dim..(j + 1) * dim];
        for (j, scores) in scores[..count / 4 * 4].chunks_exact_mut(4).enumerate() {
            let products = dot4::<FMA>(query, [key(4 * j), key(4 * j + 1), key(4 * j + 2), key(4 * j + 3)]);
            scores.copy_from_slice(&products);
        }
        for (j, score) in scores[..count].iter_mut().enumerate().skip(count / 4 * 4) {
            *score = dot::<FMA>(query, key(j));
        }
    }
}

per_isa! {
    /// Values row by row.
    fn weigh_plain = weigh_body(weights: &[f32], values: &[f32], dim: usize, acc: &mut [f32])
}

#[inline(always)]
fn weigh_body<const FMA: bool>(weights: &[f32], values: &[f32], dim: usize, acc: &mut [f32]) {
    for (weights, acc) in weights.chunks(RUN).zip(acc.chunks_exact_mut(dim)) {
        let count = values.len() / dim;
        let value = |j: usize| &values[j * dim..(j + 1) * dim];
        for (j, four) in weights[..count / 4 * 4].as_chunks::<4>().0.iter().enumerate() {
            axpy4::<FMA>(acc, *four, [value(4 * j), value(4 * j + 1), value(4 * j + 2), value(4 * j + 3)]);
        }
        for (j, weight) in weights[..count].iter().enumerate().skip(count / 4 * 4) {
            axpy::<FMA>(acc, *weight, value(j));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    // Counted loops over arrays of vectors are what the compiler unrolls into registers.
    #![allow(clippy::needless_range_loop)]

    use super::{RUN, Rows};
    use crate::cpu::linear::sum4;
    use std::arch::x86_64::*;

    /// Lanes of `at .. dim` that a vector from `at` on has.
    #[inline(always)]
    fn mask(at: usize, dim: usize) -> u16 {
        match dim.wrapping_sub(at) {
            0..16 => (1u16 << dim.wrapping_sub(at)).wrapping_sub(1),
            _ => u16::MAX,
        }
    }

    /// # Safety
    /// The machine has AVX-512.
    ///
    /// # Panics
    /// Slices of other sizes than the tile's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    pub(super) unsafe fn products(queries: &[f32], run: &Rows<'_>, dim: usize, scores: &mut [f32]) {
        let (rows, count) = (queries.len() / dim, run.keys.len() / dim);
        assert!(scores.len() >= rows * RUN && run.first + count <= RUN && rows * dim == queries.len());
        let mut row = 0;
        macro_rules! tiles {
            ($($n:literal),*) => {
                $(while rows - row >= $n {
                    for key in (0..count).step_by(4) {
                        // SAFETY: n rows from `row` on and up to four keys from `key` on, by the assertion.
                        unsafe {
                            let query = queries.as_ptr().add(row * dim);
                            let out = scores.as_mut_ptr().add(row * RUN + run.first + key);
                            product_tile::<$n>(query, run.keys.as_ptr().add(key * dim), (count - key).min(4), dim, out);
                        }
                    }
                    row += $n;
                })*
            };
        }
        tiles!(4, 2, 1);
    }

    /// # Safety
    /// `N` rows at `query`, `keys` at `key`, all of `dim`; `keys` scores can be written at `out`, every RUN.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    unsafe fn product_tile<const N: usize>(query: *const f32, key: *const f32, keys: usize, dim: usize, out: *mut f32) {
        let mut q = [query; N];
        for i in 1..N {
            q[i] = q[i - 1].wrapping_add(dim);
        }
        // A key that is not there is the last one again; its scores are not stored.
        let mut k = [key; 4];
        for j in 1..4 {
            k[j] = if j < keys { k[j - 1].wrapping_add(dim) } else { k[j - 1] };
        }
        let mut acc = [[_mm512_setzero_ps(); 4]; N];
        let mut at = 0;
        while at < dim {
            let mask = mask(at, dim);
            // SAFETY: lanes past `dim` are masked off.
            unsafe {
                let mut ks = [_mm512_setzero_ps(); 4];
                for j in 0..4 {
                    ks[j] = _mm512_maskz_loadu_ps(mask, k[j].add(at));
                }
                for i in 0..N {
                    let q = _mm512_maskz_loadu_ps(mask, q[i].add(at));
                    for j in 0..4 {
                        acc[i][j] = _mm512_fmadd_ps(q, ks[j], acc[i][j]);
                    }
                }
            }
            at = usize::wrapping_add(at, 16);
        }
        for i in 0..N {
            let sums = sum4(acc[i]);
            // SAFETY: `keys` scores of row i.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), out.add(i * RUN), keys) };
        }
    }

    /// # Safety
    /// The machine has AVX-512.
    ///
    /// # Panics
    /// Slices of other sizes than the tile's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    pub(super) unsafe fn weigh(weights: &[f32], run: &Rows<'_>, dim: usize, acc: &mut [f32]) {
        let (rows, count) = (acc.len() / dim, run.values.len() / dim);
        assert!(weights.len() >= rows * RUN && run.first + count <= RUN && rows * dim == acc.len());
        for at in (0..dim).step_by(64) {
            let mut row = 0;
            macro_rules! tiles {
                ($($n:literal),*) => {
                    $(while rows - row >= $n {
                        // SAFETY: n rows from `row` on, columns from `at` on, by the assertion.
                        unsafe {
                            let weights = weights.as_ptr().add(row * RUN + run.first);
                            let out = acc.as_mut_ptr().add(row * dim + at);
                            weigh_tile::<$n>(weights, run.values.as_ptr().add(at), count, dim, dim - at, out);
                        }
                        row += $n;
                    })*
                };
            }
            tiles!(4, 2, 1);
        }
    }

    /// # Safety
    /// `count` weights at `weights`, every RUN, for `N` rows; `count` rows of `dim` at `value`; `N` rows of `dim` at
    /// `out`; up to 64 columns, of which `left` are there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    unsafe fn weigh_tile<const N: usize>(
        weights: *const f32,
        value: *const f32,
        count: usize,
        dim: usize,
        left: usize,
        out: *mut f32,
    ) {
        let masks = [mask(0, left), mask(16.min(left), left), mask(32.min(left), left), mask(48.min(left), left)];
        let mut value = value;
        let mut weights = weights;
        let mut acc = [[_mm512_setzero_ps(); 4]; N];
        // SAFETY: lanes past `left` are masked off; everything else by the caller.
        unsafe {
            for i in 0..N {
                for j in 0..4 {
                    acc[i][j] = _mm512_maskz_loadu_ps(masks[j], out.add(i * dim).wrapping_add(j * 16));
                }
            }
            for _ in 0..count {
                let mut vs = [_mm512_setzero_ps(); 4];
                for j in 0..4 {
                    vs[j] = _mm512_maskz_loadu_ps(masks[j], value.wrapping_add(j * 16));
                }
                for i in 0..N {
                    let weight = _mm512_set1_ps(*weights.add(i * RUN));
                    for j in 0..4 {
                        acc[i][j] = _mm512_fmadd_ps(weight, vs[j], acc[i][j]);
                    }
                }
                value = value.wrapping_add(dim);
                weights = weights.add(1);
            }
            for i in 0..N {
                for j in 0..4 {
                    _mm512_mask_storeu_ps(out.add(i * dim).wrapping_add(j * 16), masks[j], acc[i][j]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919 % 1013) as f32 / 506.0 - 1.0) * 0.7).collect()
    }

    /// Softmax attention of one row over its visible offsets, in f64.
    fn reference(op: &Attention, query: &[f32], keys: &[f32], values: &[f32], visible: Range<usize>) -> Vec<f64> {
        let score = |p: usize| {
            let pairs = query.iter().zip(&keys[p * op.key_dim..]);
            let dot: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            op.softcap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = visible.clone().map(|p| score(p).exp()).collect();
        let total: f64 = weights.iter().sum();
        (0..op.value_dim)
            .map(|d| {
                let terms = visible.clone().zip(&weights);
                terms.map(|(p, w)| w * f64::from(values[p * op.value_dim + d])).sum::<f64>() / total
            })
            .collect()
    }

    #[test]
    fn two_runs_equal_one_softmax_in_f64() {
        for (dim, softcap) in [(8, None), (16, Some(3.0)), (20, None), (64, None), (80, Some(20.0)), (256, None)] {
            let op = Attention {
                heads: 1,
                kv_heads: 1,
                key_dim: dim,
                value_dim: dim,
                scale: 1.0,
                window: None,
                softcap,
                chunk: None,
                sinks: false,
            };
            for (rows, count) in [(1, 65), (3, 100), (7, 128), (21, 90)] {
                let (queries, keys, values) = (noise(1, rows * dim), noise(2, count * dim), noise(3, count * dim));
                let seen = |row: usize| row.min(40)..(count - rows + row + 1);
                for isa in Isa::testable() {
                    let (mut max, mut sum) = (vec![f32::NEG_INFINITY; rows], vec![0.0; rows]);
                    let mut acc = vec![0.0; rows * dim];
                    for base in [0, RUN] {
                        let end = (base + RUN).min(count);
                        let clip = |at: usize| at.clamp(base, end) - base;
                        let visible: Vec<_> = (0..rows).map(|r| clip(seen(r).start)..clip(seen(r).end)).collect();
                        // Whatever the buffer holds where nobody looks must not matter.
                        let run = Rows {
                            first: 0,
                            keys: &keys[base * dim..end * dim],
                            values: &values[base * dim..end * dim],
                            visible: &visible,
                        };
                        attend(isa, &op, &queries, &run, (&mut max, &mut sum), &mut acc);
                    }
                    for row in 0..rows {
                        let expected = reference(&op, &queries[row * dim..(row + 1) * dim], &keys, &values, seen(row));
                        for (d, expected) in expected.iter().enumerate() {
                            let got = f64::from(acc[row * dim + d] / sum[row]);
                            // Scores below 40 with f32 roundings of their terms move a weight by up to 40 * 2^-22; values lie within 0.7.
                            assert!(
                                (got - expected).abs() < 2e-5,
                                "{} dim {dim} row {row}: {got} {expected}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}
