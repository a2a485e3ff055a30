//! Latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads are made from one narrow latent; a
//! part of each key is the same for all heads, and only that part and its counterpart in queries are rotated.
//!
//! What is kept of a token is its latent and its key's shared part, once for all heads. The maps from the latent to keys
//! and values are absorbed: one into queries, one into what they find. An indexer may choose the tokens that are
//! looked at (DeepSeek-AI 2025, DeepSeek-V3.2-Exp).

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use super::super::rope::RopeTable;
use super::Norm;
use crate::model::program::ops::concat::Concat;
use crate::model::program::ops::head_linear::HeadLinear;
use crate::model::program::ops::index_topk::IndexTopK;
use crate::model::program::ops::join_heads::JoinHeads;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::latent_attention::LatentAttention;
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
    /// Whether the maps from the latent are stored apart for keys and values, those for keys transposed (GGUF).
    pub(crate) maps_apart: bool,
    /// What chooses the tokens looked at, if not all are. Needs latent queries.
    pub(crate) indexer: Option<Indexer>,
}

/// Heads that choose which tokens are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Indexer {
    /// Heads.
    pub(crate) heads: usize,
    /// Elements a head.
    pub(crate) dim: usize,
    /// Tokens chosen.
    pub(crate) top_k: usize,
}

/// What latent attention works on.
pub(crate) struct LatentValues {
    q_latent: Option<ValueId>,
    q: ValueId,
    kv_latent: ValueId,
    shared: ValueId,
    own: ValueId,
    turned: ValueId,
    absorbed: ValueId,
    query: ValueId,
    row: ValueId,
    found: ValueId,
    attended: ValueId,
    index: Option<IndexValues>,
}

#[derive(Clone, Copy)]
struct IndexValues {
    q: ValueId,
    k: ValueId,
    weights: ValueId,
    list: ValueId,
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
            own: builder.tokens("q_own", heads * self.own),
            turned: builder.tokens("q_turned", heads * self.shared),
            absorbed: builder.tokens("q_absorbed", heads * self.kv_rank),
            query: builder.tokens("query", heads * self.row()),
            row: builder.tokens("row", self.row()),
            found: builder.tokens("found", heads * self.kv_rank),
            attended: builder.tokens("attended", heads * self.value_dim),
            index: self.indexer.map(|indexer| indexer.values(builder)),
        }
    }

    /// Elements kept of a token.
    fn row(&self) -> usize {
        self.kv_rank + self.shared
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
        if let Some((table, pairs)) = &self.rope {
            block.op(table.op(self.shared, *pairs), &[v.shared], &[v.shared], &[]);
            let rope = Rope { offset: self.own, ..table.op(key_dim, *pairs) };
            block.op(rope, &[v.q], &[v.q], &[]);
        }
        block.op(Concat, &[v.kv_latent, v.shared], &[v.row], &[]);
        for (to, at, len) in [(v.own, 0, self.own), (v.turned, self.own, self.shared)] {
            block.op(TakeColumns { group: key_dim, at, len }, &[v.q], &[to], &[]);
        }
        self.map_heads(block, true, (v.own, v.absorbed));
        block.op(JoinHeads { heads, shared: false }, &[v.absorbed, v.turned], &[v.query], &[]);
        let rows = block.state(latent_state("latent", self.row()));
        let write = KvWrite { heads: 1, key_dim: self.row(), value_dim: 0 };
        block.node(write, &[v.row, v.row], &[], &[], &[rows]);
        let list = self.indexer.zip(v.index).zip(v.q_latent).map(|((indexer, values), latent)| {
            indexer.put(block, (hidden, self.q_rank.unwrap_or(hidden)), self.rope.as_ref(), values, (from, latent));
            values.list
        });
        let attention = LatentAttention {
            heads,
            key_dim: self.row(),
            value_dim: self.kv_rank,
            scale: self.scale,
            window: None,
            sinks: false,
            entries: None,
            chosen: list.is_some(),
            listed: self.indexer.map_or(0, |indexer| indexer.top_k),
        };
        let reads: Vec<ValueId> = [v.query].into_iter().chain(list).collect();
        block.node(attention, &reads, &[v.found], &[], &[rows]);
        self.map_heads(block, false, (v.found, v.attended));
        let map = Map::gather(hidden, heads * value_dim).with_bias(self.bias);
        block.linear("o_proj", "self_attn.o_proj", map, v.attended, to);
    }

    /// The map from the latent to keys, applied to queries, or to values, applied to what was found.
    fn map_heads(&self, block: &mut BlockBuilder, keys: bool, (from, to): (ValueId, ValueId)) {
        let (heads, rank, own, value_dim) = (self.heads, self.kv_rank, self.own, self.value_dim);
        let (role, apart) = if keys { ("k_b_proj", [rank, own]) } else { ("v_b_proj", [value_dim, rank]) };
        let (op, name, shape) = match self.maps_apart {
            true => {
                let op = HeadLinear { heads, stride: apart[0], first: 0, transposed: false };
                (op, format!("self_attn.{role}.weight"), vec![heads, apart[0], apart[1]])
            }
            false => {
                let stride = own + value_dim;
                let first = if keys { 0 } else { own };
                let op = HeadLinear { heads, stride, first, transposed: keys };
                (op, "self_attn.kv_b_proj.weight".into(), vec![heads * stride, rank])
            }
        };
        let weight = block.weight(role, &name, &shape, Some(0));
        block.op(op, &[from], &[to], &[weight]);
    }
}

/// A state of one row a token, of which the beginning is the value too.
pub(crate) fn latent_state(role: &'static str, row: usize) -> StateDecl {
    let kind = StateKind::Kv { heads: 1, key_dim: row, value_dim: 0, window: None };
    StateDecl { role, kind, rollback: Rollback::Truncate, owner: None }
}

impl Indexer {
    fn values(&self, builder: &mut ProgramBuilder) -> IndexValues {
        IndexValues {
            q: builder.tokens("index_q", self.heads * self.dim),
            k: builder.tokens("index_k", self.dim),
            weights: builder.tokens("index_weights", self.heads),
            list: builder.tokens("index_list", self.top_k),
        }
    }

    /// Index queries from the latent queries, keys and head weights from what the sublayer reads, and the choice. The first
    /// elements of a head rotate, in halves whatever the attention's pairs are.
    fn put(
        &self,
        block: &mut BlockBuilder,
        (hidden, q_rank): (usize, usize),
        rope: Option<&(RopeTable, RopePairs)>,
        v: IndexValues,
        (from, latent): (ValueId, ValueId),
    ) {
        let (heads, dim) = (self.heads, self.dim);
        let module = |name: &str| format!("self_attn.indexer.{name}");
        block.linear("index_q", &module("wq_b"), Map::columns(heads * dim, q_rank), latent, v.q);
        block.linear("index_k", &module("wk"), Map::columns(dim, hidden), from, v.k);
        Norm::Layer { eps: 1e-6, bias: true }.put(block, &module("k_norm"), "index_k_norm", dim, (v.k, v.k));
        block.linear("index_weights", &module("weights_proj"), Map::columns(heads, hidden), from, v.weights);
        if let Some((table, _)) = rope {
            for value in [v.q, v.k] {
                block.op(table.op(dim, RopePairs::HalfSplit), &[value], &[value], &[]);
            }
        }
        let keys = block.state(latent_state("index", dim));
        block.node(KvWrite { heads: 1, key_dim: dim, value_dim: 0 }, &[v.k, v.k], &[], &[], &[keys]);
        let scale = (heads as f32 * dim as f32).powf(-0.5);
        let index = IndexTopK { heads, dim, top_k: self.top_k, every: 1, scale };
        block.node(index, &[v.q, v.weights], &[v.list], &[], &[keys]);
    }
}
