//! `add_gated`: out = a + sigmoid(g) * b with one gate a token: a shared expert beside the routed ones.
//!
//! Reads a, b `[T, n]`, g `[T, 1]`; writes out `[T, n]` (may be a).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Gated sum.
#[derive(Clone, Debug, PartialEq)]
pub struct AddGated;

impl Op for AddGated {
    fn name(&self) -> &'static str {
        "add_gated"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 2 * axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (mut out, b, g) = (cx.read(0), cx.read(1), cx.read(2));
        let n = cx.view.write_width(0);
        for (i, (a, b)) in out.iter_mut().zip(&b).enumerate() {
            let gate = 1.0 / (1.0 + (-f64::from(g[i / n])).exp());
            *a = (f64::from(*a) + gate * f64::from(*b)) as f32;
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
