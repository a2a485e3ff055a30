//! `select_rows`: keeps the rows whose logits are wanted, so that the head never scores the rest.
//!
//! Reads x `[T, n]`; writes out `[R, n]`, out[r] = x[rows[r]].

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Row gather from the token axis to the row axis.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectRows;

impl Op for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let x = cx.read(0);
        let n = cx.view.read_width(0);
        let out = cx.rows.iter().flat_map(|row| x[*row as usize * n..(*row as usize + 1) * n].to_vec()).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
