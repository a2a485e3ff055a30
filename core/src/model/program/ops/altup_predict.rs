//! `altup_predict`: p_i = x_i + sum over j of c[i * n + j] x_j: what a layer is expected to do to n streams (Baykal et al.
//! 2023, arXiv:2301.13310).
//!
//! Reads x_0 .. x_(n-1) `[T, width]`, then c `[T, n * n]`; writes p_0 .. p_(n-1), none of them an x.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Prediction of all streams.
#[derive(Clone, Debug, PartialEq)]
pub struct AltupPredict {
    /// Streams.
    pub streams: usize,
}

impl Op for AltupPredict {
    fn name(&self) -> &'static str {
        "altup_predict"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost {
            flops: 2 * axes.tokens() * (self.streams * self.streams * view.write_width(0)) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (n, width) = (self.streams, cx.view.write_width(0));
        let streams: Vec<Vec<f32>> = (0..n).map(|i| cx.read(i)).collect();
        let coefficients = cx.read(n);
        for i in 0..n {
            let mut out = streams[i].clone();
            for (at, v) in out.iter_mut().enumerate() {
                let c = &coefficients[at / width * n * n + i * n..][..n];
                let mix: f64 = c.iter().zip(&streams).map(|(c, x)| f64::from(*c) * f64::from(x[at])).sum();
                *v = (f64::from(*v) + mix) as f32;
            }
            cx.write(i, out);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
