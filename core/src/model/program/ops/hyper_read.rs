//! `hyper_read`: out = sum over residual streams c of gate_c x_c.
//!
//! Reads x `[T|R, streams * n]` and gates whose first `streams` elements are used (see `hyper_gates`); writes out `[T|R, n]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// One stream out of several.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperRead {
    /// Residual streams.
    pub streams: usize,
}

impl HyperRead {
    /// One row.
    pub fn row(&self, x: &[f32], gates: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        for (stream, gate) in x.chunks_exact(out.len()).zip(&gates[..self.streams]) {
            out.iter_mut().zip(stream).for_each(|(o, x)| *o += gate * x);
        }
    }
}

impl Op for HyperRead {
    fn name(&self) -> &'static str {
        "hyper_read"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 2 * view.rows(axes) * view.read_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (x, gates) = (cx.read(0), cx.read(1));
        let (width, gate_width) = (cx.view.read_width(0), cx.view.read_width(1));
        let n = width / self.streams;
        let rows = x.chunks(width).zip(gates.chunks(gate_width));
        let out = rows.flat_map(|(x, gates)| {
            let sum = |d: usize| (0..self.streams).map(|c| f64::from(gates[c]) * f64::from(x[c * n + d])).sum::<f64>();
            (0..n).map(|d| sum(d) as f32).collect::<Vec<_>>()
        });
        cx.write(0, out.collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
