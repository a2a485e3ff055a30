//! `altup_correct`: x_i = p_i + (1 + c[i]) (y - p_a): the streams corrected by what the layer did to stream a.
//!
//! Reads p_0 .. p_(n-1) `[T, width]`, then y `[T, width]` and c `[T, n]`; writes x_0 .. x_(n-1), none of them a p.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Correction of all streams.
#[derive(Clone, Debug, PartialEq)]
pub struct AltupCorrect {
    /// Streams.
    pub streams: usize,
    /// The one the layer worked on.
    pub active: usize,
}

impl Op for AltupCorrect {
    fn name(&self) -> &'static str {
        "altup_correct"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 3 * axes.tokens() * (self.streams * view.write_width(0)) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (n, width) = (self.streams, cx.view.write_width(0));
        let predicted: Vec<Vec<f32>> = (0..n).map(|i| cx.read(i)).collect();
        let (done, coefficients) = (cx.read(n), cx.read(n + 1));
        for i in 0..n {
            let mut out = predicted[i].clone();
            for (at, v) in out.iter_mut().enumerate() {
                let surprise = f64::from(done[at]) - f64::from(predicted[self.active][at]);
                *v = (f64::from(*v) + (1.0 + f64::from(coefficients[at / width * n + i])) * surprise) as f32;
            }
            cx.write(i, out);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
