//! `join_heads`: out's head h is [a's head h | b], or [a's head h | b's head h]: keys of which a part is the same for all
//! heads, queries of two parts.
//!
//! Reads a `[T, heads * n]`, b `[T, m]` or `[T, heads * m]`; writes out `[T, heads * (n + m)]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Heads with an end.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinHeads {
    /// Heads.
    pub heads: usize,
    /// Whether b is the same for all heads.
    pub shared: bool,
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
        let (n, m) = (width / self.heads, if self.shared { m } else { m / self.heads });
        let end = |i: usize| if self.shared { i / self.heads } else { i };
        let out = a.chunks(n).enumerate().flat_map(|(i, a)| [a, &b[end(i) * m..][..m]].concat());
        cx.write(0, out.collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
