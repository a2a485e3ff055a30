//! Attention whose output is gated: the query map gives each head a query and a gate, and the head's output is taken
//! times sigmoid(gate).

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use super::super::rope::RopeTable;
use super::{Attend, AttentionShape, AttentionValues, Norm, NormOver};
use crate::model::program::ValueId;
use crate::model::program::ops::gated_act::{Activation, GatedAct};
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::take_columns::TakeColumns;

/// Gated attention with norms on queries and keys.
#[derive(Clone, Debug)]
pub(crate) struct GatedAttention {
    /// Sizes.
    pub(crate) shape: AttentionShape,
    /// Bias in the maps.
    pub(crate) bias: bool,
    /// On each query and key head.
    pub(crate) norm: Norm,
    /// Rotation.
    pub(crate) rope: RopeTable,
}

/// What it works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedAttentionValues {
    inner: AttentionValues,
    /// Query and gate of each head side by side.
    both: ValueId,
    gate: ValueId,
}

impl GatedAttention {
    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> GatedAttentionValues {
        GatedAttentionValues {
            both: builder.tokens("q_and_gate", 2 * self.shape.q_width()),
            gate: builder.tokens("attention_gate", self.shape.q_width()),
            inner: self.shape.values(builder),
        }
    }

    /// The whole sublayer, its tensors below `module`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: GatedAttentionValues,
        (from, to): (ValueId, ValueId),
    ) {
        let AttentionShape { hidden, head_dim, .. } = self.shape;
        let GatedAttentionValues { inner, both, gate } = values;
        let (q, kv) = (self.shape.q_width(), self.shape.kv_width());
        for (role, out, width) in [("q_proj", both, 2 * q), ("k_proj", inner.k, kv), ("v_proj", inner.v, kv)] {
            let map = Map::columns(width, hidden).with_bias(self.bias);
            block.linear(role, &format!("{module}.{role}"), map, from, out);
        }
        for (to, at) in [(inner.q, 0), (gate, head_dim)] {
            block.op(TakeColumns { group: 2 * head_dim, at, len: head_dim }, &[both], &[to], &[]);
        }
        self.shape.norm_queries_and_keys(block, module, (self.norm, NormOver::Head), inner);
        self.shape.rotate(block, &self.rope, RopePairs::HalfSplit, inner);
        let how = Attend::full(self.shape.usual_scale());
        self.shape.attend(block, how, inner);
        let act = GatedAct::plain(Activation::Sigmoid);
        block.op(act, &[gate, inner.attended], &[gate], &[]);
        let map = Map::gather(hidden, q).with_bias(self.bias);
        block.linear("o_proj", &format!("{module}.o_proj"), map, gate, to);
    }
}
