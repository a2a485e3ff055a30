//! `repeat`: out = [x | x | …], `count` times: the residual streams of hyper-connections at their start.
//!
//! Reads x `[T, n]`; writes out `[T, count * n]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Copies side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// Copies.
    pub count: usize,
}

impl Op for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let x = cx.read(0);
        let out = x.chunks(cx.view.read_width(0)).flat_map(|row| row.repeat(self.count)).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
