//! `take_columns`: out takes `len` elements at `at` out of every `group` elements of x.
//!
//! Reads x `[T, groups * group]`; writes out `[T, groups * len]`. It parts what a fused map gives head by head: the
//! query and the gate of a gated attention, q, k, v and z of a delta net.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Column gather.
#[derive(Clone, Debug, PartialEq)]
pub struct TakeColumns {
    /// Elements of a group.
    pub group: usize,
    /// First element taken of a group.
    pub at: usize,
    /// Elements taken of a group.
    pub len: usize,
}

impl Op for TakeColumns {
    fn name(&self) -> &'static str {
        "take_columns"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let x = cx.read(0);
        let out = x.chunks(self.group).flat_map(|group| group[self.at..self.at + self.len].to_vec()).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
