//! `layer_norm`: y = (x - mean) / sqrt(variance + eps) * weight (+ bias), over each group of `group` elements (Ba et al.
//! 2016, arXiv:1607.06450).
//!
//! Reads x `[T|R, n]`; writes y of the same shape (may be x); n is a multiple of `group`. Weights: `[group]`, then bias
//! `[group]` if any. The variance is that of the group itself (divided by `group`).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Norm of mean and variance.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Elements a norm is taken over.
    pub group: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether the second weight is a bias.
    pub bias: bool,
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let bytes = |i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), 1);
        NodeCost {
            weight_bytes: (0..view.node.weights.len()).map(bytes).sum(),
            flops: 7 * view.rows(axes) * view.write_width(0) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let weight = cx.vector(0)?;
        let bias = if self.bias { cx.vector(1)? } else { vec![0.0; self.group] };
        let mut out = cx.read(0);
        for group in out.chunks_mut(self.group) {
            let n = self.group as f64;
            let mean = group.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = group.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + f64::from(self.eps)).sqrt();
            for ((v, w), b) in group.iter_mut().zip(&weight).zip(&bias) {
                *v = ((f64::from(*v) - mean) * scale * f64::from(*w) + f64::from(*b)) as f32;
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
