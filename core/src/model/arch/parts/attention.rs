//! Grouped-query attention in steps: project, norm, rotate, attend, gather.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use super::super::rope::RopeTable;
use super::Norm;
use crate::model::program::ops::attention::Attention;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::rope::{Rope, RopePairs};
use crate::model::program::{Rollback, StateDecl, StateId, StateKind, ValueId};

/// Sizes of an attention sublayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Tokens of a chunk, if a query sees only keys of its own chunk.
    pub(crate) chunk: Option<usize>,
    /// The tensor of a sink a head, below the block's prefix.
    pub(crate) sinks: Option<&'static str>,
}

impl Attend {
    /// All keys up to the query.
    pub(crate) fn full(scale: f32) -> Self {
        Self { scale, window: None, softcap: None, chunk: None, sinks: None }
    }

    /// The same with a window, if any.
    pub(crate) fn window(self, window: Option<usize>) -> Self {
        Self { window, ..self }
    }
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
        self.values_as(builder, ["q", "k", "v", "attended"])
    }

    /// Values of this shape under names of their own, for programs with several shapes.
    pub(crate) fn values_as(&self, builder: &mut ProgramBuilder, names: [&'static str; 4]) -> AttentionValues {
        let [q, k, v, attended] = names;
        AttentionValues {
            q: builder.tokens(q, self.q_width()),
            k: builder.tokens(k, self.kv_width()),
            v: builder.tokens(v, self.kv_width()),
            attended: builder.tokens(attended, self.q_width()),
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
        norm: (Norm, NormOver),
        values: AttentionValues,
    ) {
        self.norm_named(block, module, ["q_norm", "k_norm"], norm, values);
    }

    /// The same under other names.
    pub(crate) fn norm_named(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        names: [&'static str; 2],
        (norm, over): (Norm, NormOver),
        values: AttentionValues,
    ) {
        let [q, k] = names;
        for (role, value, width) in [(q, values.q, self.q_width()), (k, values.k, self.kv_width())] {
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
            self.rotate_one(block, table, pairs, value);
        }
    }

    /// Rotates heads.
    pub(crate) fn rotate_one(&self, block: &mut BlockBuilder, table: &RopeTable, pairs: RopePairs, value: ValueId) {
        block.op(table.op(self.head_dim, pairs), &[value], &[value], &[]);
    }

    /// Appends keys and values to a state of the block's own and attends to it.
    pub(crate) fn attend(&self, block: &mut BlockBuilder, how: Attend, values: AttentionValues) {
        let kv = self.state(block, how, None);
        let write = KvWrite { heads: self.kv_heads, key_dim: self.head_dim, value_dim: self.head_dim };
        block.node(write, &[values.k, values.v], &[], &[], &[kv]);
        self.look(block, how, kv, values);
    }

    /// Attends to the keys and values of layer `owner`.
    pub(crate) fn attend_shared(&self, block: &mut BlockBuilder, how: Attend, owner: usize, values: AttentionValues) {
        let kv = self.state(block, how, Some(owner));
        self.look(block, how, kv, values);
    }

    fn state(&self, block: &mut BlockBuilder, how: Attend, owner: Option<usize>) -> StateId {
        let (heads, dim) = (self.kv_heads, self.head_dim);
        // A chunk reaches back at most as far as a window of its size.
        let window = how.window.or(how.chunk);
        let kind = StateKind::Kv { heads, key_dim: dim, value_dim: dim, window };
        block.state(StateDecl { role: "kv", kind, rollback: Rollback::Truncate, owner })
    }

    fn look(&self, block: &mut BlockBuilder, how: Attend, kv: StateId, values: AttentionValues) {
        let (heads, kv_heads, dim) = (self.heads, self.kv_heads, self.head_dim);
        let Attend { scale, window, softcap, chunk, sinks } = how;
        let weights: Vec<_> = sinks.map(|name| block.weight("sinks", name, &[heads], Some(0))).into_iter().collect();
        let (key_dim, value_dim, sinks) = (dim, dim, sinks.is_some());
        let attention = Attention { heads, kv_heads, key_dim, value_dim, scale, window, softcap, chunk, sinks };
        block.node(attention, &[values.q], &[values.attended], &weights, &[kv]);
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
        Rope { head_dim, inv_freq, magnitude, pairs, offset: 0, long, every: 1 }
    }
}
