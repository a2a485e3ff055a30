//! `mul`: out = a * b, element by element: a gate without an activation.
//!
//! Reads a, b `[T, n]`; writes out `[T, n]` (may be a).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Element-wise product.
#[derive(Clone, Debug, PartialEq)]
pub struct Mul;

impl Op for Mul {
    fn name(&self) -> &'static str {
        "mul"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (a, b) = (cx.read(0), cx.read(1));
        cx.write(0, a.iter().zip(&b).map(|(a, b)| a * b).collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
