//! `sparsify`: out = max(x - (mean + deviations * std), 0), mean and standard deviation taken over the row: what stands out
//! of a row of gates (gemma3n's activation sparsity).
//!
//! Reads x `[T, n]`; writes out `[T, n]` (may be x). The deviation is that of the row itself (divided by n).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Cut at a quantile of the row, taken as normally distributed.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparsify {
    /// Standard deviations above the mean.
    pub deviations: f32,
}

impl Sparsify {
    /// The cut of a row.
    pub fn cut(&self, row: &[f32]) -> f64 {
        let n = row.len() as f64;
        let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        mean + f64::from(self.deviations) * variance.sqrt()
    }
}

impl Op for Sparsify {
    fn name(&self) -> &'static str {
        "sparsify"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 6 * view.rows(axes) * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (mut out, width) = (cx.read(0), cx.view.write_width(0));
        for row in out.chunks_mut(width) {
            let cut = self.cut(row);
            row.iter_mut().for_each(|v| *v = (f64::from(*v) - cut).max(0.0) as f32);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
