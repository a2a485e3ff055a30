//! `carry`: out[t] = x[carry[t]], x as the pass before left it: how a drafting head gets at what the trunk, or its own
//! last pass, made of the tokens before.
//!
//! Reads x `[T of the pass before, n]`; writes out `[T, n]`. Which rows is said by the batch
//! ([`crate::runtime::StepBatch::carry`]).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Rows of the pass before.
#[derive(Clone, Debug, PartialEq)]
pub struct Carry;

impl Op for Carry {
    fn name(&self) -> &'static str {
        "carry"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        cx.write(0, cx.carried.to_vec());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
