//! `layer_slice`: out takes the columns of x that belong to the layer: `width` elements at layer * width.
//!
//! Reads x `[T, layers * width]`; writes out `[T, width]`. The layer is the block use's: gemma's per-layer embeddings.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Columns of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSlice;

impl LayerSlice {
    /// First column of a layer's `width`.
    pub fn first(view: &NodeView<'_>) -> usize {
        view.place.layer.unwrap_or(0) * view.write_width(0)
    }
}

impl Op for LayerSlice {
    fn name(&self) -> &'static str {
        "layer_slice"
    }

    fn cost(&self, _: &NodeView<'_>, _: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost::default()
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (all, width, first) = (cx.view.read_width(0), cx.view.write_width(0), LayerSlice::first(&cx.view));
        let out = cx.read(0).chunks(all).flat_map(|row| row[first..first + width].to_vec()).collect();
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
