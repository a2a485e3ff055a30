//! `scale`: out = x * factor, or x * factor * weight.
//!
//! Reads x `[T|R, n]`; writes out of the same shape (may be x). Weight, if any: `[1]`, a scalar of the layer, or `[n]`, a factor
//! a channel. Multipliers of logits (granite, cohere) and of layers (gemma4) are this op.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Product with a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Factor on every element.
    pub factor: f32,
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let rows = view.rows(axes);
        let weight_bytes = match view.node.weights.is_empty() {
            true => 0,
            false => sizes.weight_bytes(view.program, view.place, &view.tensor(0), 1),
        };
        NodeCost { weight_bytes, flops: rows * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let weight = if cx.view.node.weights.is_empty() { vec![1.0] } else { cx.vector(0)? };
        let mut out = cx.read(0);
        for (i, x) in out.iter_mut().enumerate() {
            *x *= self.factor * weight[i % weight.len()];
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
