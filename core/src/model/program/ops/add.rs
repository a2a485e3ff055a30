//! `add`: out = a + scale * b, the residual connection.
//!
//! Reads a, b `[T|R, n]`; writes out of the same shape (may be a). `scale` is granite's residual multiplier, else 1.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Element-wise sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// Factor on b.
    pub scale: f32,
}

impl Add {
    /// The plain sum.
    pub const SUM: Self = Self { scale: 1.0 };
}

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: view.rows(axes) * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (a, b) = (cx.read(0), cx.read(1));
        cx.write(0, a.iter().zip(&b).map(|(a, b)| a + self.scale * b).collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
