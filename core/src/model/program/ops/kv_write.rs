//! `kv_write`: appends the step's keys and values to the state.
//!
//! Reads k `[T, heads * key_dim]`, v `[T, heads * value_dim]`; writes no value. State: kv.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Append to the KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct KvWrite {
    /// Key/value heads.
    pub heads: usize,
    /// Elements of a key row of one head.
    pub key_dim: usize,
    /// Elements of a value row of one head.
    pub value_dim: usize,
}

impl Op for KvWrite {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn cost(&self, _: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let row = sizes.kv_row_bytes(self.key_dim) + sizes.kv_row_bytes(self.value_dim);
        NodeCost { state_write_bytes: axes.tokens() * self.heads as u64 * row, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (k, v) = (cx.read(0), cx.read(1));
        let state = cx.state(0);
        state.keys.extend(k.chunks(self.heads * self.key_dim).map(<[f32]>::to_vec));
        match self.value_dim {
            // Keys alone: what is read as values is not kept.
            0 => state.values.resize(state.keys.len(), Vec::new()),
            dim => state.values.extend(v.chunks(self.heads * dim).map(<[f32]>::to_vec)),
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
