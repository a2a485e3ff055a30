//! qwen4_exp: the hybrid of delta nets, attention and experts on several residual streams (hyper-connections), with hashed
//! n-gram embeddings in some layers and attention that looks only at the blocks of keys an indexer chooses.
//!
//! Reference: transformers `models/qwen4_exp/modeling_qwen4_exp.py`. There are no norms but those of the streams, each stream
//! by itself; what a sublayer reads is a gated mean of the normed streams. Layers in `ple_layer_ids` count from 1.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes, Stored};
use super::dense::{LAYER, known_activation};
use super::hybrid::{Experts, Hybrid};
use super::parts::moe::MoeValues;
use super::parts::shared_expert::SharedValues;
use super::parts::stream::head_name;
use super::parts::{AttentionShape, AttentionValues, DeltaValues, NormOver};
use super::{ArchError, Family, Source};
use crate::model::program::ops::act::Act;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::attention::Attention;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::gated_act::{Activation, GatedAct};
use crate::model::program::ops::indexed_attention::IndexedAttention;
use crate::model::program::ops::inject::Inject;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::mean_streams::MeanStreams;
use crate::model::program::ops::mul::Mul;
use crate::model::program::ops::ngram_embed::NgramEmbed;
use crate::model::program::ops::repeat::Repeat;
use crate::model::program::ops::rms_norm::RmsNorm;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::ops::select_rows::SelectRows;
use crate::model::program::ops::short_conv::ShortConv;
use crate::model::program::ops::stream_gate::StreamGate;
use crate::model::program::ops::take_columns::TakeColumns;
use crate::model::program::{Program, Rollback, StateDecl, StateKind, ValueId};
use std::sync::Arc;

/// The family.
pub const FAMILY: Family = Family { name: "qwen4_exp", model_types: &["qwen4_exp", "qwen4_exp_text"], program };

/// Sizes of the indexer.
#[derive(Clone, Copy)]
struct Indexer {
    heads: usize,
    dim: usize,
    ratio: usize,
    kept: usize,
}

struct Qwen4 {
    hybrid: Hybrid,
    streams: usize,
    low_rank: usize,
    indexer: Indexer,
    eps: f32,
    offset: f32,
    /// Width of the n-gram embeddings of a token.
    ngram_width: usize,
    conv_kernel: usize,
    ngrams: Vec<Ngrams>,
}

/// The n-gram embeddings of one layer.
struct Ngrams {
    layer: usize,
    embed: NgramEmbed,
    /// Shapes of the table's parts.
    parts: Vec<Vec<usize>>,
}

/// What a site of the streams is worked out in.
#[derive(Clone, Copy)]
struct Site {
    normed: ValueId,
    low: ValueId,
    mixed: ValueId,
}

struct Values {
    embedding: ValueId,
    /// The streams side by side.
    x: ValueId,
    site: Site,
    by: ValueId,
    input: ValueId,
    sublayer: ValueId,
    delta: DeltaValues,
    attention: AttentionValues,
    both: ValueId,
    gate: ValueId,
    index_q: ValueId,
    index_k: ValueId,
    moe: MoeValues,
    shared: SharedValues,
    ngram: ValueId,
    key: ValueId,
    query: ValueId,
    value: ValueId,
    gated: ValueId,
    conv_in: ValueId,
    conv_out: ValueId,
    last_x: ValueId,
    last_site: Site,
    last: ValueId,
    logits: ValueId,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let model = Qwen4::from_config(source)?;
    let Some(experts) = &model.hybrid.experts else {
        return Err(ArchError::Value { key: "num_experts".into(), why: "there are none".into() });
    };
    let mut builder = ProgramBuilder::new("qwen4_exp");
    builder.skip_other_modalities();
    builder.skip("mtp.");
    for name in ["layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"] {
        builder.skip(format!("*.ple.ple_embedding.{name}"));
    }
    let values = model.values(&mut builder, experts);
    let prologue = builder.add(model.prologue(&values));
    let epilogue = builder.add(model.epilogue(&values, head_name(source.tied_head()?)));
    builder.place(prologue, None);
    let mut known: Vec<((bool, Option<usize>), usize)> = Vec::new();
    for (layer, kind) in model.hybrid.layers.iter().enumerate() {
        // Tables of n-grams differ from layer to layer, so each such layer is a kind of its own.
        let own = (kind.full, model.ngrams.iter().position(|ngrams| ngrams.layer == layer));
        let found = known.iter().find(|(other, _)| *other == own).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(&values, experts, own));
            known.push((own, block));
            block
        });
        builder.place(block, Some(layer));
    }
    builder.place(epilogue, None);
    let sizes = Sizes {
        vocab: model.hybrid.ends.vocab,
        hidden: model.hybrid.ends.hidden,
        layers: model.hybrid.layers.len(),
        max_context: model.hybrid.max_context,
    };
    builder.finish(&sizes, values.logits)
}

impl Qwen4 {
    fn from_config(source: &Source<'_>) -> Result<Self, ArchError> {
        let config = source.config;
        let normalised = config.bool_or("norm_topk_prob", true)?;
        let mut hybrid = Hybrid::from_config("qwen4_exp", source, false)?.with_experts(source, normalised)?;
        if let Some(kind) = config.opt_str("output_gate_type")? {
            hybrid.delta.activation = known_activation("output_gate_type", kind)?;
        }
        let ratio = config.positive("indexer_compress_ratio")?;
        if config.usize_or("indexer_kv_heads", 1)? != 1 {
            return Err(ArchError::Value { key: "indexer_kv_heads".into(), why: "only 1 is supported".into() });
        }
        Ok(Self {
            streams: config.positive("hc_count")?,
            low_rank: config.positive("hc_lowrank")?,
            indexer: Indexer {
                heads: config.positive("indexer_n_heads")?,
                dim: config.positive("indexer_head_dim")?,
                ratio,
                kept: config.usize_or("indexer_budget", 2048)? / ratio,
            },
            eps: config.f64_or("rms_norm_eps", 1e-6)? as f32,
            offset: source.storage.norm_weight_offset,
            ngram_width: config.usize_or("ple_embed_dim", hybrid.ends.hidden)?,
            conv_kernel: config.usize_or("ple_conv_kernel_size", 4)?.max(1),
            ngrams: ngrams(source, hybrid.layers.len())?,
            hybrid,
        })
    }

    fn wide(&self) -> usize {
        self.streams * self.hybrid.ends.hidden
    }

    fn values(&self, builder: &mut ProgramBuilder, experts: &Experts) -> Values {
        let (hidden, wide, shape) = (self.hybrid.ends.hidden, self.wide(), self.hybrid.attention.shape);
        Values {
            embedding: builder.tokens("embedding", hidden),
            x: builder.tokens("x", wide),
            site: Site {
                normed: builder.tokens("streams.normed", wide),
                low: builder.tokens("streams.low", self.low_rank),
                mixed: builder.tokens("streams.mixed", wide),
            },
            by: builder.tokens("streams.inject", self.streams),
            input: builder.tokens("normed", hidden),
            sublayer: builder.tokens("sublayer", hidden),
            delta: self.hybrid.delta.values(builder),
            attention: shape.values(builder),
            both: builder.tokens("q_and_gate", 2 * shape.q_width()),
            gate: builder.tokens("attention_gate", shape.q_width()),
            index_q: builder.tokens("index_q", self.indexer.heads * self.indexer.dim),
            index_k: builder.tokens("index_k", self.indexer.dim),
            moe: experts.routed.values(builder),
            shared: experts.shared.values(builder),
            ngram: builder.tokens("ngram", self.ngram_width),
            key: builder.tokens("ngram.key", wide),
            query: builder.tokens("ngram.query", wide),
            value: builder.tokens("ngram.value", hidden),
            gated: builder.tokens("ngram.gated", wide),
            conv_in: builder.tokens("ngram.conv.raw", wide),
            conv_out: builder.tokens("ngram.conv", wide),
            last_x: builder.rows("last_x", wide),
            last_site: Site {
                normed: builder.rows("last.normed", wide),
                low: builder.rows("last.low", self.low_rank),
                mixed: builder.rows("last.mixed", wide),
            },
            last: builder.rows("last", hidden),
            logits: builder.rows("logits", self.hybrid.ends.vocab),
        }
    }

    fn prologue(&self, v: &Values) -> BlockBuilder {
        let mut block = BlockBuilder::new("prologue");
        let shape = [self.hybrid.ends.vocab, self.hybrid.ends.hidden];
        let table = block.weight("embed", "model.embed_tokens.weight", &shape, Some(0));
        block.op(Embed::scaled(1.0), &[], &[v.embedding], &[table]);
        block.op(Repeat { count: self.streams }, &[v.embedding], &[v.x], &[]);
        block
    }

    fn epilogue(&self, v: &Values, head: &str) -> BlockBuilder {
        let mut block = BlockBuilder::new("epilogue");
        block.op(SelectRows, &[v.x], &[v.last_x], &[]);
        self.mix(&mut block, "model.hyper_connection_mixer", v.last_site, (v.last_x, v.last));
        let shape = [self.hybrid.ends.vocab, self.hybrid.ends.hidden];
        let head = block.weight("lm_head", head, &shape, Some(0));
        block.op(Linear { bias: false }, &[v.last], &[v.logits], &[head]);
        block
    }

    fn layer(&self, v: &Values, experts: &Experts, (full, ngrams): (bool, Option<usize>)) -> BlockBuilder {
        let name = match (full, ngrams.is_some()) {
            (true, true) => "layer.full.ngram",
            (true, false) => "layer.full",
            (false, true) => "layer.delta.ngram",
            (false, false) => "layer.delta",
        };
        let mut block = BlockBuilder::under(name, LAYER);
        if let Some(ngrams) = ngrams.and_then(|i| self.ngrams.get(i)) {
            self.ngrams(&mut block, v, ngrams);
        }
        self.enter(&mut block, "attn_hyper_connection", v);
        match full {
            true => self.attend(&mut block, v),
            false => self.hybrid.delta.put(&mut block, "linear_attn", v.delta, (v.input, v.sublayer)),
        }
        block.op(Inject, &[v.x, v.sublayer, v.by], &[v.x], &[]);
        self.enter(&mut block, "mlp_hyper_connection", v);
        experts.routed.put(&mut block, v.moe, (v.input, v.sublayer));
        experts.shared.join(&mut block, v.shared, (v.input, v.sublayer));
        block.op(Inject, &[v.x, v.sublayer, v.by], &[v.x], &[]);
        block
    }

    /// Norms each stream by itself.
    fn norm(&self, block: &mut BlockBuilder, module: &str, (from, to): (ValueId, ValueId)) {
        let weight = block.weight("stream_norm", &format!("{module}.weight"), &[self.wide()], None);
        let norm = RmsNorm { group: self.hybrid.ends.hidden, eps: self.eps, offset: self.offset };
        block.op(norm, &[from], &[to], &[weight]);
    }

    /// A sublayer's input: a gated mean of the normed streams.
    fn mix(&self, block: &mut BlockBuilder, module: &str, site: Site, (from, to): (ValueId, ValueId)) {
        let Site { normed, low, mixed } = site;
        let (wide, rank, factor) = (self.wide(), self.low_rank, 1.0 / self.streams as f32);
        self.norm(block, &format!("{module}.hc_norm"), (from, normed));
        let down = format!("{module}.input_mix_weight_down");
        block.linear("mix_down", &down, Map::columns(rank, wide), normed, low);
        block.op(Scale { factor }, &[low], &[low], &[]);
        block.op(Act { activation: Activation::Silu }, &[low], &[low], &[]);
        let up = format!("{module}.input_mix_weight_up");
        block.linear("mix_up", &up, Map::gather(wide, rank), low, mixed);
        block.op(Act { activation: Activation::Sigmoid }, &[mixed], &[mixed], &[]);
        block.op(Mul, &[mixed, normed], &[mixed], &[]);
        block.op(MeanStreams, &[mixed], &[to], &[]);
    }

    /// The input of a sublayer, and how much of its output each stream takes.
    fn enter(&self, block: &mut BlockBuilder, module: &str, v: &Values) {
        self.mix(block, module, v.site, (v.x, v.input));
        let map = Map::columns(self.streams, self.wide());
        block.linear("inject", &format!("{module}.block_inject_weight"), map, v.site.normed, v.by);
        block.op(Scale { factor: 1.0 / self.streams as f32 }, &[v.by], &[v.by], &[]);
        block.op(Act { activation: Activation::Sigmoid }, &[v.by], &[v.by], &[]);
        block.op(Scale { factor: 2.0 }, &[v.by], &[v.by], &[]);
    }

    fn ngrams(&self, block: &mut BlockBuilder, v: &Values, ngrams: &Ngrams) {
        let (hidden, wide) = (self.hybrid.ends.hidden, self.wide());
        let parts = ngrams.parts.iter().enumerate().map(|(i, shape)| {
            let name = format!("ple.ple_embedding.ngram_embedding.shard_{i}.weight");
            block.weight("ngram_table", &name, shape, Some(0))
        });
        let parts: Vec<_> = parts.collect();
        let state = block.state(ngrams.embed.state());
        block.node(ngrams.embed.clone(), &[], &[v.ngram], &parts, &[state]);
        for (role, to, out) in [("key_proj", v.key, wide), ("value_proj", v.value, hidden)] {
            block.linear(role, &format!("ple.{role}"), Map::columns(out, self.ngram_width), v.ngram, to);
        }
        self.norm(block, "ple.norm_key", (v.key, v.key));
        self.norm(block, "ple.norm_query", (v.x, v.query));
        block.op(StreamGate, &[v.key, v.query, v.value], &[v.gated], &[]);
        self.norm(block, "ple.norm_conv", (v.gated, v.conv_in));
        let conv = ShortConv {
            kernel: self.conv_kernel,
            dilation: ngrams.embed.multipliers.len(),
            bias: false,
            activation: Some(Activation::Silu),
        };
        let weight = block.weight("ngram_conv", "ple.conv1d.weight", &[wide, 1, self.conv_kernel], Some(0));
        let state = block.state(StateDecl::recurrent("ngram_conv", &[conv.reach(), wide]));
        block.node(conv, &[v.conv_in], &[v.conv_out], &[weight], &[state]);
        block.op(Add::SUM, &[v.x, v.gated], &[v.x], &[]);
        block.op(Add::SUM, &[v.x, v.conv_out], &[v.x], &[]);
    }

    fn attend(&self, block: &mut BlockBuilder, v: &Values) {
        let attention = &self.hybrid.attention;
        let (shape, inner, bias) = (attention.shape, v.attention, attention.bias);
        let AttentionShape { hidden, heads, kv_heads, head_dim } = shape;
        let (q, kv) = (shape.q_width(), shape.kv_width());
        for (role, out, width) in [("q_proj", v.both, 2 * q), ("k_proj", inner.k, kv), ("v_proj", inner.v, kv)] {
            let map = Map::columns(width, hidden).with_bias(bias);
            block.linear(role, &format!("self_attn.{role}"), map, v.input, out);
        }
        for (to, at) in [(inner.q, 0), (v.gate, head_dim)] {
            block.op(TakeColumns { group: 2 * head_dim, at, len: head_dim }, &[v.both], &[to], &[]);
        }
        shape.norm_queries_and_keys(block, "self_attn", (attention.norm, NormOver::Head), inner);
        shape.rotate(block, &attention.rope, RopePairs::HalfSplit, inner);
        let kind = StateKind::Kv { heads: kv_heads, key_dim: head_dim, value_dim: head_dim, window: None };
        let kv = block.state(StateDecl { role: "kv", kind, rollback: Rollback::Truncate, owner: None });
        let write = KvWrite { heads: kv_heads, key_dim: head_dim, value_dim: head_dim };
        block.node(write, &[inner.k, inner.v], &[], &[], &[kv]);
        self.index(block, v);
        let kind = StateKind::Kv { heads: 1, key_dim: self.indexer.dim, value_dim: 0, window: None };
        let index = block.state(StateDecl { role: "index", kind, rollback: Rollback::Truncate, owner: None });
        let write = KvWrite { heads: 1, key_dim: self.indexer.dim, value_dim: 0 };
        block.node(write, &[v.index_k, v.index_k], &[], &[], &[index]);
        let weight = block.weight("index_k_norm", "self_attn.indexer.k_layernorm.weight", &[self.indexer.dim], None);
        let op = IndexedAttention {
            attention: Attention {
                heads,
                kv_heads,
                key_dim: head_dim,
                value_dim: head_dim,
                scale: shape.usual_scale(),
                window: None,
                softcap: None,
                chunk: None,
                sinks: false,
            },
            index_heads: self.indexer.heads,
            index_dim: self.indexer.dim,
            ratio: self.indexer.ratio,
            kept: self.indexer.kept,
            eps: self.eps,
            offset: self.offset,
            rope: attention.rope.op(self.indexer.dim, RopePairs::HalfSplit),
        };
        block.node(op, &[inner.q, v.index_q], &[inner.attended], &[weight], &[kv, index]);
        block.op(GatedAct::plain(Activation::Sigmoid), &[v.gate, inner.attended], &[v.gate], &[]);
        let map = Map::gather(hidden, q).with_bias(bias);
        block.linear("o_proj", "self_attn.o_proj", map, v.gate, v.sublayer);
    }

    /// Queries of the indexer, normed and rotated, and its raw key.
    fn index(&self, block: &mut BlockBuilder, v: &Values) {
        let Indexer { heads, dim, .. } = self.indexer;
        let hidden = self.hybrid.ends.hidden;
        let outputs = (heads + 1) * dim;
        for (role, to, out, first) in [("index_q", v.index_q, heads * dim, 0), ("index_k", v.index_k, dim, heads * dim)]
        {
            let stored = Stored { outputs, first, transposed: false };
            let map = Map::columns(out, hidden).stored(stored);
            block.linear(role, "self_attn.indexer.index_qk_proj", map, v.input, to);
        }
        let module = "self_attn.indexer.q_layernorm";
        self.hybrid.attention.norm.put(block, module, "index_q_norm", dim, (v.index_q, v.index_q));
        let rope = self.hybrid.attention.rope.op(dim, RopePairs::HalfSplit);
        block.op(rope, &[v.index_q], &[v.index_q], &[]);
    }
}

/// The n-gram tables of the layers that have them.
fn ngrams(source: &Source<'_>, layers: usize) -> Result<Vec<Ngrams>, ArchError> {
    let config = source.config;
    let listed = config.opt_usize_list("ple_layer_ids")?.unwrap_or_default();
    let eos = config.ids("eos_token_id")?.first().copied().unwrap_or(u32::MAX);
    let size = config.usize_or("ngram_size", 3)?;
    let of_layer = |layer: usize| {
        let own = |name: &str| format!("model.layers.{layer}.ple.ple_embedding.{name}");
        let multipliers = integers(source, &own("layer_multipliers"))?;
        let sizes = integers(source, &own("ngram_heads_vocab_sizes"))?;
        let offsets = integers(source, &own("ngram_heads_offsets"))?;
        if multipliers.len() != size
            || size < 2
            || sizes.is_empty()
            || sizes.len() != offsets.len()
            || sizes.len() % (size - 1) != 0
        {
            let why = format!("{} multipliers and {} heads for {size}-grams", multipliers.len(), sizes.len());
            return Err(ArchError::Value { key: "ngram_size".into(), why });
        }
        let shard = |i: usize| (source.tensor)(&own(&format!("ngram_embedding.shard_{i}.weight")));
        let parts: Vec<Vec<usize>> = (0..1 << 20).map_while(shard).map(|part| part.shape().to_vec()).collect();
        let rows: usize = parts.iter().filter_map(|shape| shape.first()).sum();
        let needed = sizes.iter().zip(offsets.iter()).map(|(size, offset)| size + offset).max().unwrap_or(0);
        if (rows as i64) < needed || sizes.iter().chain(offsets.iter()).any(|n| *n < 0) {
            let why = format!("the table has {rows} rows and its heads reach {needed}");
            return Err(ArchError::Value { key: "ngram_vocab_size_base".into(), why });
        }
        Ok(Ngrams { layer, embed: NgramEmbed { multipliers, sizes, offsets, eos }, parts })
    };
    (0..layers).filter(|layer| listed.contains(&(layer + 1))).map(of_layer).collect()
}

/// A tensor of 64-bit integers.
fn integers(source: &Source<'_>, name: &str) -> Result<Arc<[i64]>, ArchError> {
    let Some(tensor) = (source.tensor)(name) else {
        return Err(ArchError::MissingTensor { name: name.into(), why: "n-grams are hashed by it".into() });
    };
    if tensor.dtype().name() != "I64" {
        return Err(ArchError::Format { name: name.into(), dtype: tensor.dtype().name().to_string() });
    }
    let numbers = tensor.bytes().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
    Ok(numbers.collect())
}
