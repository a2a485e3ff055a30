//! `linear`: y = x · Wᵀ (+ bias).
//!
//! Reads x `[T|R, k]`; writes y `[T|R, n]`. Weights: W `[n, k]` as stored in the checkpoint, then bias `[n]` if any.
//! The output head is this op over the R axis.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, Axis, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Matrix product with a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Whether the second weight is a bias.
    pub bias: bool,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let rows = match view.program.values[view.node.writes[0].at()].axis {
            Axis::Tokens => axes.tokens(),
            Axis::Rows => axes.rows(),
        };
        if rows == 0 {
            return NodeCost::default();
        }
        let (k, n) = (view.read_width(0) as u64, view.write_width(0) as u64);
        let mut weight_bytes = sizes.weight_bytes(view.program, view.place, &view.tensor(0), n);
        if self.bias {
            weight_bytes += sizes.weight_bytes(view.program, view.place, &view.tensor(1), 1);
        }
        NodeCost { weight_bytes, flops: 2 * rows * k * n, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let x = cx.read(0);
        let (k, n) = (cx.view.read_width(0), cx.view.write_width(0));
        let bias = if self.bias { cx.vector(1)? } else { vec![0.0; n] };
        let tensor = (cx.tensor)(cx.view.node.weights[0]);
        let mut out = vec![0.0; x.len() / k * n];
        let mut row = vec![0.0; k];
        for o in 0..n {
            tensor
                .dequant_rows(o..o + 1, &mut row)
                .map_err(|source| PlainError::Tensor { name: tensor.name().to_string(), source: source.into() })?;
            for (t, x) in x.chunks(k).enumerate() {
                let dot: f64 = x.iter().zip(&row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                out[t * n + o] = (dot + f64::from(bias[o])) as f32;
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
