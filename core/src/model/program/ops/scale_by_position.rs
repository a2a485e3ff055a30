//! `scale_by_position`: out[t] = x[t] * (1 + slope * ln(1 + floor((p + 1) / step))) at the token's position p: queries that
//! grow with the context (llama4, after Nakanishi 2025, arXiv:2501.19399).
//!
//! Reads x `[T, n]`; writes out `[T, n]` (may be x).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Factor that grows with the position.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleByPosition {
    /// How fast it grows.
    pub slope: f32,
    /// Positions of a step of the factor.
    pub step: usize,
}

impl ScaleByPosition {
    /// The factor at a position.
    pub fn factor(&self, position: usize) -> f64 {
        let steps = (position + 1) / self.step;
        1.0 + f64::from(self.slope) * (steps as f64).ln_1p()
    }
}

impl Op for ScaleByPosition {
    fn name(&self) -> &'static str {
        "scale_by_position"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: view.rows(axes) * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (mut out, width) = (cx.read(0), cx.view.write_width(0));
        for (t, row) in out.chunks_mut(width).enumerate() {
            let factor = self.factor(cx.past + t);
            row.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
