//! `inject`: out's stream s = x's stream s + g[s] * f: what a sublayer gives joins the residual streams.
//!
//! Reads x `[T, streams * n]`, f `[T, n]`, g `[T, streams]`; writes out `[T, streams * n]` (may be x).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Weighted sum into streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Inject;

impl Op for Inject {
    fn name(&self) -> &'static str {
        "inject"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 2 * axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (mut out, f, g) = (cx.read(0), cx.read(1), cx.read(2));
        let (n, width) = (cx.view.read_width(1), cx.view.write_width(0));
        let streams = width / n;
        for (i, x) in out.iter_mut().enumerate() {
            let (t, s, j) = (i / width, i % width / n, i % n);
            *x = (f64::from(*x) + f64::from(g[t * streams + s]) * f64::from(f[t * n + j])) as f32;
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
