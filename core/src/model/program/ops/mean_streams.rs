//! `mean_streams`: out = the mean of x's streams, x's columns being cut into equal runs.
//!
//! Reads x `[T|R, streams * n]`; writes out `[T|R, n]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Mean over streams.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanStreams;

impl Op for MeanStreams {
    fn name(&self) -> &'static str {
        "mean_streams"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: view.rows(axes) * view.read_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (x, n, width) = (cx.read(0), cx.view.write_width(0), cx.view.read_width(0));
        let streams = width / n;
        let mean =
            |row: &[f32], i: usize| (0..streams).map(|s| f64::from(row[s * n + i])).sum::<f64>() / streams as f64;
        let out = x.chunks(width).flat_map(|row| (0..n).map(|i| mean(row, i) as f32).collect::<Vec<_>>()).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
