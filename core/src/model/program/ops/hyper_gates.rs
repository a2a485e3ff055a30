//! `hyper_gates`: how residual streams are read, written and mixed, from a map of them (Xie et al. 2026, mHC).
//!
//! Reads a map of the normed streams `[T|R, n]`; writes gates of the same shape (may be it). Weights: scales `[1]` or `[3]`,
//! base `[n]`. The first `streams` are what reads take: sigmoid(scale m + base) + eps. If `mixes`, as many follow that
//! writes take: 2 sigmoid(...); then a matrix `[streams, streams]`: softmax over its rows + eps, divided by the sums of its
//! columns (+ eps), then `iterations` - 1 times by those of its rows and of its columns (Sinkhorn).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Gates of hyper-connections.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperGates {
    /// Residual streams.
    pub streams: usize,
    /// Whether streams are written and mixed, not only read.
    pub mixes: bool,
    /// Rounds of normalising the mixing matrix.
    pub iterations: usize,
    /// Keeps gates and divisors from zero.
    pub eps: f32,
}

impl HyperGates {
    /// Elements of the map and of the gates.
    pub fn width(&self) -> usize {
        if self.mixes { (2 + self.streams) * self.streams } else { self.streams }
    }

    /// Turns one row of the map into gates.
    pub fn row(&self, row: &mut [f32], scales: &[f32], base: &[f32]) {
        let (n, eps) = (self.streams, f64::from(self.eps));
        let at = |row: &[f32], i: usize| {
            f64::from(row[i]) * f64::from(scales[(i / n).min(scales.len() - 1)]) + f64::from(base[i])
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let reads: Vec<f64> = (0..n).map(|i| sigmoid(at(row, i)) + eps).collect();
        let mut all = reads;
        if self.mixes {
            all.extend((n..2 * n).map(|i| 2.0 * sigmoid(at(row, i))));
            let mut matrix: Vec<f64> = (2 * n..row.len()).map(|i| at(row, i)).collect();
            self.balance(&mut matrix);
            all.extend(matrix);
        }
        row.iter_mut().zip(all).for_each(|(to, gate)| *to = gate as f32);
    }

    fn balance(&self, matrix: &mut [f64]) {
        let (n, eps) = (self.streams, f64::from(self.eps));
        for row in matrix.chunks_mut(n) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter_mut().for_each(|v| *v = (*v - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v = *v / sum + eps);
        }
        let columns = |matrix: &mut [f64]| {
            for column in 0..n {
                let sum: f64 = matrix.iter().skip(column).step_by(n).sum();
                matrix.iter_mut().skip(column).step_by(n).for_each(|v| *v /= sum + eps);
            }
        };
        columns(matrix);
        for _ in 1..self.iterations {
            for row in matrix.chunks_mut(n) {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|v| *v /= sum + eps);
            }
            columns(matrix);
        }
    }
}

impl Op for HyperGates {
    fn name(&self) -> &'static str {
        "hyper_gates"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let bytes = |i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), 1);
        let work = (4 + 4 * self.iterations * usize::from(self.mixes)) * self.width();
        NodeCost { weight_bytes: bytes(0) + bytes(1), flops: view.rows(axes) * work as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (scales, base) = (cx.vector(0)?, cx.vector(1)?);
        let mut out = cx.read(0);
        out.chunks_mut(self.width()).for_each(|row| self.row(row, &scales, &base));
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
