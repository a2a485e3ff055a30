//! Grouped-query attention in steps: project, norm, rotate, attend, gather.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use super::super::rope::RopeTable;
use super::Norm;
use crate::model::program::ops::attention::Attention;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::rope::{Rope, RopePairs};
use crate::model::program::{Rollback, StateDecl, StateKind, ValueId};

/// Sizes of an attention sublayer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// Residual width.
    pub(crate) hidden: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key/value heads.
    pub(crate) kv_heads: usize,
    /// Elements a head.
    pub(crate) head_dim: usize,
}

/// What an attention sublayer works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionValues {
    /// Queries.
    pub(crate) q: ValueId,
    /// Keys.
    pub(crate) k: ValueId,
    /// Values.
    pub(crate) v: ValueId,
    /// Weighted values of all heads.
    pub(crate) attended: ValueId,
}

/// How queries meet keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attend {
    /// Factor on q·k.
    pub(crate) scale: f32,
    /// Keys visible to a query, if limited.
    pub(crate) window: Option<usize>,
    /// Cap on scores.
    pub(crate) softcap: Option<f32>,
}

/// What a norm on queries and keys is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOver {
    /// Each head.
    Head,
    /// The whole projection, before it is cut into heads.
    All,
}

impl AttentionShape {
    /// Elements of all query heads.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The usual factor on q·k.
    pub(crate) fn usual_scale(&self) -> f32 {
        (self.head_dim as f32).powf(-0.5)
    }

    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> AttentionValues {
        AttentionValues {
            q: builder.tokens("q", self.q_width()),
            k: builder.tokens("k", self.kv_width()),
            v: builder.tokens("v", self.kv_width()),
            attended: builder.tokens("attended", self.q_width()),
        }
    }

    /// q, k and v from `from` by maps `module.q_proj` and so on.
    pub(crate) fn project(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        bias: bool,
        from: ValueId,
        values: AttentionValues,
    ) {
        let (q, kv) = (self.q_width(), self.kv_width());
        for (role, out, width) in [("q_proj", values.q, q), ("k_proj", values.k, kv), ("v_proj", values.v, kv)] {
            let map = Map::columns(width, self.hidden).with_bias(bias);
            block.linear(role, &format!("{module}.{role}"), map, from, out);
        }
    }

    /// q, k and v from `from` by one stored map `module` whose outputs are those of q, k and v in a row.
    pub(crate) fn project_fused(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        (bias, transposed): (bool, bool),
        from: ValueId,
        values: AttentionValues,
    ) {
        let (q, kv) = (self.q_width(), self.kv_width());
        let outputs = q + 2 * kv;
        for (role, out, width, first) in
            [("q_proj", values.q, q, 0), ("k_proj", values.k, kv, q), ("v_proj", values.v, kv, q + kv)]
        {
            let stored = Stored { outputs, first, transposed };
            let map = Map::columns(width, self.hidden).with_bias(bias).stored(stored);
            block.linear(role, module, map, from, out);
        }
    }

    /// A norm on queries and keys, `module.q_norm` and `module.k_norm`.
    pub(crate) fn norm_queries_and_keys(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        (norm, over): (Norm, NormOver),
        values: AttentionValues,
    ) {
        for (role, value, width) in [("q_norm", values.q, self.q_width()), ("k_norm", values.k, self.kv_width())] {
            let group = match over {
                NormOver::Head => self.head_dim,
                NormOver::All => width,
            };
            norm.put(block, &format!("{module}.{role}"), role, group, (value, value));
        }
    }

    /// Rotates queries and keys.
    pub(crate) fn rotate(
        &self,
        block: &mut BlockBuilder,
        table: &RopeTable,
        pairs: RopePairs,
        values: AttentionValues,
    ) {
        for value in [values.q, values.k] {
            block.op(table.op(self.head_dim, pairs), &[value], &[value], &[]);
        }
    }

    /// Appends keys and values to a state of the block's own and attends to it.
    pub(crate) fn attend(&self, block: &mut BlockBuilder, how: Attend, values: AttentionValues) {
        let (heads, kv_heads, dim) = (self.heads, self.kv_heads, self.head_dim);
        let kv = block.state(StateDecl {
            role: "kv",
            kind: StateKind::Kv { heads: kv_heads, key_dim: dim, value_dim: dim, window: how.window },
            rollback: Rollback::Truncate,
        });
        let write = KvWrite { heads: kv_heads, key_dim: dim, value_dim: dim };
        block.node(write, &[values.k, values.v], &[], &[], &[kv]);
        let Attend { scale, window, softcap } = how;
        let attention = Attention { heads, kv_heads, key_dim: dim, value_dim: dim, scale, window, softcap };
        block.node(attention, &[values.q], &[values.attended], &[], &[kv]);
    }

    /// Brings all heads back to the residual's width by the map `module`.
    pub(crate) fn gather(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        bias: bool,
        values: AttentionValues,
        to: ValueId,
    ) {
        let map = Map::gather(self.hidden, self.q_width()).with_bias(bias);
        block.linear("o_proj", module, map, values.attended, to);
    }
}

impl RopeTable {
    /// The op that rotates heads of `head_dim` by this table.
    pub(crate) fn op(&self, head_dim: usize, pairs: RopePairs) -> Rope {
        let Self { inv_freq, magnitude, long } = self.clone();
        Rope { head_dim, inv_freq, magnitude, pairs, long }
    }
}
