//! `concat`: out = [a | b], side by side.
//!
//! Reads a `[T, n]`, b `[T, m]`; writes out `[T, n + m]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Columns of two values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat;

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (a, b) = (cx.read(0), cx.read(1));
        let (n, m) = (cx.view.read_width(0), cx.view.read_width(1));
        let rows = a.chunks(n).zip(b.chunks(m));
        let out = rows.flat_map(|(a, b)| [a, b].concat()).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
