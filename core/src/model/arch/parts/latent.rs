//! Latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads are made from one narrow latent; a
//! part of each key is the same for all heads, and only that part and its counterpart in queries are rotated.
//!
//! Keys and values are kept as heads see them, not as the latent.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use super::super::rope::RopeTable;
use super::Norm;
use crate::model::program::ops::attention::Attention;
use crate::model::program::ops::join_heads::JoinHeads;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::rope::{Rope, RopePairs};
use crate::model::program::ops::take_columns::TakeColumns;
use crate::model::program::{Rollback, StateDecl, StateKind, ValueId};

/// Latent attention.
#[derive(Clone)]
pub(crate) struct Latent {
    /// Query heads; each has keys and values of its own.
    pub(crate) heads: usize,
    /// Elements of a latent query, if queries are made from one.
    pub(crate) q_rank: Option<usize>,
    /// Elements of a latent key and value.
    pub(crate) kv_rank: usize,
    /// Elements of a key's own part.
    pub(crate) own: usize,
    /// Of its shared part.
    pub(crate) shared: usize,
    /// Elements of a value.
    pub(crate) value_dim: usize,
    /// Bias in the maps from the residual width and to it.
    pub(crate) bias: bool,
    /// Factor on q·k.
    pub(crate) scale: f32,
    /// Rotation of the shared part, if any.
    pub(crate) rope: Option<(RopeTable, RopePairs)>,
}

/// What latent attention works on.
pub(crate) struct LatentValues {
    q_latent: Option<ValueId>,
    q: ValueId,
    kv_latent: ValueId,
    shared: ValueId,
    both: ValueId,
    own: ValueId,
    k: ValueId,
    v: ValueId,
    attended: ValueId,
}

impl Latent {
    /// Elements of a key: its own part, then the shared one.
    pub(crate) fn key_dim(&self) -> usize {
        self.own + self.shared
    }

    /// Values of these sizes.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> LatentValues {
        let heads = self.heads;
        LatentValues {
            q_latent: self.q_rank.map(|rank| builder.tokens("q_latent", rank)),
            q: builder.tokens("q", heads * self.key_dim()),
            kv_latent: builder.tokens("kv_latent", self.kv_rank),
            shared: builder.tokens("k_shared", self.shared),
            both: builder.tokens("k_and_v", heads * (self.own + self.value_dim)),
            own: builder.tokens("k_own", heads * self.own),
            k: builder.tokens("k", heads * self.key_dim()),
            v: builder.tokens("v", heads * self.value_dim),
            attended: builder.tokens("attended", heads * self.value_dim),
        }
    }

    /// The whole sublayer.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        norm: Norm,
        hidden: usize,
        v: &LatentValues,
        (from, to): (ValueId, ValueId),
    ) {
        let (heads, key_dim, value_dim) = (self.heads, self.key_dim(), self.value_dim);
        match (self.q_rank, v.q_latent) {
            (Some(rank), Some(latent)) => {
                let map = Map::columns(rank, hidden).with_bias(self.bias);
                block.linear("q_a_proj", "self_attn.q_a_proj", map, from, latent);
                norm.put(block, "self_attn.q_a_layernorm", "q_a_norm", rank, (latent, latent));
                block.linear("q_b_proj", "self_attn.q_b_proj", Map::columns(heads * key_dim, rank), latent, v.q);
            }
            _ => block.linear("q_proj", "self_attn.q_proj", Map::columns(heads * key_dim, hidden), from, v.q),
        }
        let outputs = self.kv_rank + self.shared;
        for (role, to, out, first) in
            [("kv_a_proj", v.kv_latent, self.kv_rank, 0), ("k_shared", v.shared, self.shared, self.kv_rank)]
        {
            let stored = Stored { outputs, first, transposed: false };
            let map = Map::columns(out, hidden).with_bias(self.bias).stored(stored);
            block.linear(role, "self_attn.kv_a_proj_with_mqa", map, from, to);
        }
        norm.put(block, "self_attn.kv_a_layernorm", "kv_a_norm", self.kv_rank, (v.kv_latent, v.kv_latent));
        let group = self.own + value_dim;
        let map = Map::columns(heads * group, self.kv_rank);
        block.linear("kv_b_proj", "self_attn.kv_b_proj", map, v.kv_latent, v.both);
        for (to, at, len) in [(v.own, 0, self.own), (v.v, self.own, value_dim)] {
            block.op(TakeColumns { group, at, len }, &[v.both], &[to], &[]);
        }
        if let Some((table, pairs)) = &self.rope {
            block.op(table.op(self.shared, *pairs), &[v.shared], &[v.shared], &[]);
            let rope = Rope { offset: self.own, ..table.op(key_dim, *pairs) };
            block.op(rope, &[v.q], &[v.q], &[]);
        }
        block.op(JoinHeads { heads, shared: true }, &[v.own, v.shared], &[v.k], &[]);
        let kv = block.state(StateDecl {
            role: "kv",
            kind: StateKind::Kv { heads, key_dim, value_dim, window: None },
            rollback: Rollback::Truncate,
            owner: None,
        });
        block.node(KvWrite { heads, key_dim, value_dim }, &[v.k, v.v], &[], &[], &[kv]);
        let attention = Attention {
            heads,
            kv_heads: heads,
            key_dim,
            value_dim,
            scale: self.scale,
            window: None,
            softcap: None,
            chunk: None,
            sinks: false,
        };
        block.node(attention, &[v.q], &[v.attended], &[], &[kv]);
        let map = Map::gather(hidden, heads * value_dim).with_bias(self.bias);
        block.linear("o_proj", "self_attn.o_proj", map, v.attended, to);
    }
}
