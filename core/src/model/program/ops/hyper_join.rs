//! `hyper_join`: what a sublayer gives joins residual streams that are mixed: out_k = write_k y + sum over j of mix_jk x_j.
//!
//! Reads x `[T, streams * n]`, y `[T, n]`, gates `[T, (2 + streams) * streams]` (see `hyper_gates`); writes out like x (may be x).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// A sublayer's output into several streams.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperJoin {
    /// Residual streams.
    pub streams: usize,
}

impl HyperJoin {
    /// One row, in place.
    pub fn row(&self, x: &mut [f32], y: &[f32], gates: &[f32]) {
        let (c, n) = (self.streams, y.len());
        let (writes, mix) = gates[c..].split_at(c);
        let mut before = vec![0.0; c];
        for (d, y) in y.iter().enumerate() {
            before.iter_mut().enumerate().for_each(|(j, v)| *v = x[j * n + d]);
            for k in 0..c {
                let mixed: f32 = before.iter().enumerate().map(|(j, x)| mix[j * c + k] * x).sum();
                x[k * n + d] = writes[k] * y + mixed;
            }
        }
    }
}

impl Op for HyperJoin {
    fn name(&self) -> &'static str {
        "hyper_join"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        let each = 2 * (self.streams + 1) * view.write_width(0);
        NodeCost { flops: axes.tokens() * each as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (x, y, gates) = (cx.read(0), cx.read(1), cx.read(2));
        let (width, gate_width, c) = (cx.view.read_width(0), cx.view.read_width(2), self.streams);
        let n = width / c;
        let mut out = Vec::with_capacity(x.len());
        for ((x, y), gates) in x.chunks(width).zip(y.chunks(n)).zip(gates.chunks(gate_width)) {
            for k in 0..c {
                out.extend((0..n).map(|d| {
                    let mix = |j: usize| f64::from(gates[2 * c + j * c + k]) * f64::from(x[j * n + d]);
                    (f64::from(gates[c + k]) * f64::from(y[d]) + (0..c).map(mix).sum::<f64>()) as f32
                }));
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
