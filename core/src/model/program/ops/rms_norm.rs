//! `rms_norm`: y = x / sqrt(mean(x²) + eps) * (weight + offset), over each group of `group` elements.
//!
//! Reads x `[T, n]`; writes y `[T, n]` (may be x); n is a multiple of `group`. Weight: `[group]`, shared by all groups,
//! or `[n]`, or none, which stands for 1. With `group` = hidden it is the layer norm of the llama family (Zhang and Sennrich 2019, arXiv:1910.07467); with
//! `group` = head size it is the per-head query/key norm of qwen3 and gemma3. `offset` is 1 where checkpoints store
//! w and mean 1 + w (gemma from safetensors).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Root-mean-square norm.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Elements a norm is taken over.
    pub group: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Added to the stored weight.
    pub offset: f32,
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let rows = match view.program.values[view.node.writes[0].at()].axis {
            crate::model::program::Axis::Tokens => axes.tokens(),
            crate::model::program::Axis::Rows => axes.rows(),
        };
        NodeCost {
            weight_bytes: match view.node.weights.is_empty() {
                true => 0,
                false => sizes.weight_bytes(view.program, view.place, &view.tensor(0), 1),
            },
            flops: 4 * rows * view.write_width(0) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let weighted = !cx.view.node.weights.is_empty();
        let factors: Vec<f32> = match weighted {
            true => cx.vector(0)?.iter().map(|w| w + self.offset).collect(),
            false => vec![1.0; self.group],
        };
        let mut out = cx.read(0);
        for (i, group) in out.chunks_mut(self.group).enumerate() {
            let factors = &factors[i * self.group % factors.len()..];
            let mean = group.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / self.group as f64;
            let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
            for (v, factor) in group.iter_mut().zip(factors) {
                *v = (f64::from(*v) * scale * f64::from(*factor)) as f32;
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
