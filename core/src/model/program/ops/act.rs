//! `act`: out = act(x), the middle of an MLP without a gate.
//!
//! Reads x `[T, n]`; writes out `[T, n]` (may be x).

use super::gated_act::Activation;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Element-wise activation.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// The non-linearity.
    pub activation: Activation,
}

impl Op for Act {
    fn name(&self) -> &'static str {
        "act"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 7 * view.rows(axes) * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let out = cx.read(0).iter().map(|x| self.activation.eval(f64::from(*x)) as f32).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
