//! `match_rms`: out = b * rms(a) / max(rms(b), sqrt(1e-5)), row by row: b brought to the magnitude of a (gemma3n).
//!
//! Reads a, b `[T|R, n]`; writes out of the same shape (may be b).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Magnitude of one value on another.
#[derive(Clone, Debug, PartialEq)]
pub struct MatchRms;

impl MatchRms {
    /// The factor on b.
    pub fn factor(a: &[f32], b: &[f32]) -> f64 {
        let mean = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        mean(a).sqrt() / mean(b).max(1e-5).sqrt()
    }
}

impl Op for MatchRms {
    fn name(&self) -> &'static str {
        "match_rms"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 5 * view.rows(axes) * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (a, mut b, width) = (cx.read(0), cx.read(1), cx.view.write_width(0));
        for (a, b) in a.chunks(width).zip(b.chunks_mut(width)) {
            let factor = MatchRms::factor(a, b);
            b.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
        }
        cx.write(0, b);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
