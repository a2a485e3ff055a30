//! `softcap`: out = cap * tanh(x / cap), on final logits (gemma2; gemma3 where its config says so).
//!
//! Reads x `[R, n]`; writes out `[R, n]` (may be x).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Smooth cap on logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Softcap {
    /// The bound approached.
    pub cap: f32,
}

impl Op for Softcap {
    fn name(&self) -> &'static str {
        "softcap"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 4 * axes.rows() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let cap = f64::from(self.cap);
        let out = cx.read(0).iter().map(|x| (cap * (f64::from(*x) / cap).tanh()) as f32).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
