//! `join_heads`: out's head h is [a's head h | b]: keys of which a part is the same for all heads.
//!
//! Reads a `[T, heads * n]`, b `[T, m]`; writes out `[T, heads * (n + m)]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Heads with a shared end.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinHeads {
    /// Heads.
    pub heads: usize,
}

impl Op for JoinHeads {
    fn name(&self) -> &'static str {
        "join_heads"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (a, b) = (cx.read(0), cx.read(1));
        let (width, m) = (cx.view.read_width(0), cx.view.read_width(1));
        let rows = a.chunks(width).zip(b.chunks(m));
        let out =
            rows.flat_map(|(a, b)| a.chunks(width / self.heads).flat_map(|a| [a, b].concat()).collect::<Vec<_>>());
        cx.write(0, out.collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
