//! deepseek_v4: several residual streams that each sublayer reads, writes and mixes; attention of all heads to one shared
//! row a token, in a window, and beyond it to compressed windows (all of them, or those an indexer finds best); experts
//! in all layers, chosen by token id in the first ones.
//!
//! Reference: transformers `models/deepseek_v4/modeling_deepseek_v4.py`; DeepSeek-AI 2026, DeepSeek-V4. A row is key and value
//! at once and rotates at its end, so what attention finds is turned back by the query's position. Rows are kept of all
//! positions, and so are the rows that windows are made from.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::known_activation;
use super::parts::kinds::kinds;
use super::parts::latent::latent_state;
use super::parts::moe::{ExpertTensors, Moe, MoeValues, expert_counts};
use super::parts::norm::weightless;
use super::parts::{Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::EXPERT_TABLE;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::compress::Compress;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::gated_act::GatedAct;
use crate::model::program::ops::head_linear::HeadLinear;
use crate::model::program::ops::hyper_gates::HyperGates;
use crate::model::program::ops::hyper_join::HyperJoin;
use crate::model::program::ops::hyper_read::HyperRead;
use crate::model::program::ops::index_topk::IndexTopK;
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::latent_attention::LatentAttention;
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::moe_experts::ExpertAct;
use crate::model::program::ops::moe_route::{MoeRoute, Score};
use crate::model::program::ops::repeat::Repeat;
use crate::model::program::ops::rope::{Rope, RopePairs};
use crate::model::program::ops::select_rows::SelectRows;
use crate::model::program::{Program, StateDecl, StateId, StateKind, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "deepseek_v4", model_types: &["deepseek_v4"], program };

/// What lies beyond the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    Nothing,
    /// Compressed windows of so many tokens, the best of them (CSA).
    Best(usize),
    /// Compressed windows of so many tokens (HCA).
    All(usize),
}

/// What tells layers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    beyond: Beyond,
    /// Experts are chosen by token id.
    by_token: bool,
}

struct Names {
    layer: &'static str,
    embed: &'static str,
    norm: &'static str,
    head: &'static str,
    kv_norm: &'static str,
}

struct Model {
    names: Names,
    hidden: usize,
    vocab: usize,
    streams: usize,
    gates: HyperGates,
    eps: f32,
    norm: Norm,
    heads: usize,
    dim: usize,
    q_rank: usize,
    groups: usize,
    group_rank: usize,
    window: usize,
    index_heads: usize,
    index_dim: usize,
    index_top_k: usize,
    /// Rotation in layers with nothing beyond the window, and in the others.
    ropes: [RopeTable; 2],
    moe: Moe,
    shared: Mlp,
    limit: f32,
}

struct Values {
    x: ValueId,
    flat: ValueId,
    gates: ValueId,
    input: ValueId,
    normed: ValueId,
    sublayer: ValueId,
    q_latent: ValueId,
    q: ValueId,
    row: ValueId,
    attended: ValueId,
    grouped: ValueId,
    entry: ValueId,
    index_entry: ValueId,
    index_q: ValueId,
    index_weights: ValueId,
    list: ValueId,
    choice: MoeValues,
    shared: MlpValues,
    shared_out: ValueId,
}

/// What a compressor works on: rows to be mixed and their scores. Its width depends on the layer.
struct Raw {
    rows: ValueId,
    scores: ValueId,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let layers = config.positive("num_hidden_layers")?;
    let model = Model::new(source)?;
    let kinds = layer_kinds(source, layers)?;
    let mut builder = ProgramBuilder::new("deepseek_v4");
    builder.skip("mtp.");
    builder.skip(model.names.layer.replace("{layer}", &layers.to_string()));
    let values = model.values(&mut builder);
    let prologue = model.prologue(&mut builder, &values);
    let prologue = builder.add(prologue);
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for (layer, kind) in kinds.into_iter().enumerate() {
        let found = known.iter().find(|(other, _)| *other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = model.layer(&mut builder, &values, kind);
            let block = builder.add(block);
            known.push((kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    let (epilogue, logits) = model.epilogue(&mut builder, &values);
    let epilogue = builder.add(epilogue);
    builder.place(epilogue, None);
    let max_context = config.usize_or("max_position_embeddings", 4096)?.max(1);
    builder.finish(&Sizes { vocab: model.vocab, hidden: model.hidden, layers, max_context }, logits)
}

fn layer_kinds(source: &Source<'_>, layers: usize) -> Result<Vec<Kind>, ArchError> {
    let config = source.config;
    let rates = config.opt_object("compress_rates")?;
    let rate = |key: &str, default: usize| -> Result<usize, ArchError> {
        let rate = rates.as_ref().map(|rates| rates.usize_or(key, default)).transpose()?.unwrap_or(default);
        if rate == 0 {
            return Err(ArchError::Value { key: "compress_rates".into(), why: format!("`{key}` must not be 0") });
        }
        Ok(rate)
    };
    let best = rate("compressed_sparse_attention", config.usize_or("compress_rate_csa", 4)?)?;
    let all = rate("heavily_compressed_attention", config.usize_or("compress_rate_hca", 128)?)?;
    let names = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];
    let ratios = config.opt_usize_list("compress_ratios")?;
    let of_ratio = |layer: usize| match ratios.as_ref().and_then(|ratios| ratios.get(layer)) {
        Some(0 | 1) => 0,
        Some(ratio) if *ratio == best => 1,
        Some(_) => 2,
        None if layer < 2 => 2,
        None => 1 + layer % 2,
    };
    let attention = kinds(source, "layer_types", &names, layers, of_ratio)?;
    let hashed = config.usize_or("num_hash_layers", 3)?;
    let mlp = kinds(source, "mlp_layer_types", &["moe", "hash_moe"], layers, |layer| usize::from(layer < hashed))?;
    let beyond = |kind: usize| [Beyond::Nothing, Beyond::Best(best), Beyond::All(all)][kind];
    Ok(attention.into_iter().zip(mlp).map(|(a, m)| Kind { beyond: beyond(a), by_token: m == 1 }).collect())
}

impl Model {
    fn new(source: &Source<'_>) -> Result<Self, ArchError> {
        let config = source.config;
        let hidden = config.positive("hidden_size")?;
        let eps = config.f64_or("rms_norm_eps", 1e-6)? as f32;
        let (heads, dim) = (config.positive("num_attention_heads")?, config.positive("head_dim")?);
        let share = config.f64_or("partial_rotary_factor", 0.125)?;
        let turned = config.usize_or("qk_rope_head_dim", (dim as f64 * share) as usize)?;
        let index_dim = config.usize_or("index_head_dim", 128)?;
        let groups = config.positive("o_groups")?;
        for (key, fits) in [
            ("qk_rope_head_dim", turned <= dim.min(index_dim) && turned.is_multiple_of(2)),
            ("o_groups", heads.is_multiple_of(groups)),
        ] {
            if !fits {
                return Err(ArchError::Value { key: key.into(), why: "it does not fit the heads".into() });
            }
        }
        let main = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: false };
        let compress = OldKeys { theta: "compress_rope_theta", default_theta: 160_000.0, scaled: true };
        let beyond = RopeTable { magnitude: 1.0, ..table(source, "compress", turned, &compress)? };
        let activation = known_activation("hidden_act", config.opt_str("hidden_act")?.unwrap_or("silu"))?;
        let units = config.positive("moe_intermediate_size")?;
        let limit = config.f64_or("swiglu_limit", 10.0)? as f32;
        let streams = config.positive("hc_mult")?;
        let (experts, top_k) = expert_counts(config, "n_routed_experts", ("num_experts_per_tok", 6))?;
        let route = MoeRoute {
            score: match config.opt_str("scoring_func")?.unwrap_or("sqrtsoftplus") {
                "sqrtsoftplus" => Score::SqrtSoftplus,
                "sigmoid" => Score::Sigmoid,
                "softmax" => Score::Softmax,
                other => {
                    let why = format!("`{other}` is none of sqrtsoftplus, sigmoid, softmax");
                    return Err(ArchError::Value { key: "scoring_func".into(), why });
                }
            },
            factor: config.f64_or("routed_scaling_factor", 1.5)? as f32,
            ..MoeRoute::softmax(top_k, true)
        };
        let module = ("ffn.experts", ["w1", "w3", "w2"]);
        let mut moe = Moe::of_mlps((hidden, units, activation), experts, route, module, "ffn.gate");
        moe.experts.act = ExpertAct::Clamped { activation, limit };
        let names = Names::of(source);
        let first = names.layer.replace("{layer}", "0");
        if (source.tensor)(&format!("{first}ffn.experts.w1")).is_some() {
            moe.tensors = ExpertTensors::Apart(["ffn.experts.w1", "ffn.experts.w3", "ffn.experts.w2"]);
        }
        let shared = config.usize_or("n_shared_experts", 1)?.max(1).saturating_mul(units);
        Ok(Self {
            names,
            hidden,
            vocab: config.positive("vocab_size")?,
            streams,
            gates: HyperGates {
                streams,
                mixes: true,
                iterations: config.usize_or("hc_sinkhorn_iters", 20)?.max(1),
                eps: config.f64_or("hc_eps", 1e-6)? as f32,
            },
            eps,
            norm: Norm::Rms { eps, offset: 0.0 },
            heads,
            dim,
            q_rank: config.positive("q_lora_rank")?,
            groups,
            group_rank: config.positive("o_lora_rank")?,
            window: config.positive("sliding_window")?,
            index_heads: config.usize_or("index_n_heads", 64)?.max(1),
            index_dim,
            index_top_k: config.usize_or("index_topk", 512)?.max(1),
            ropes: [table(source, "main", turned, &main)?, beyond],
            moe,
            shared: Mlp { hidden, intermediate: shared, activation, bias: false },
            limit,
        })
    }

    fn values(&self, builder: &mut ProgramBuilder) -> Values {
        let Self { hidden, streams, heads, dim, .. } = *self;
        let mut tokens = |name, width| builder.tokens(name, width);
        Values {
            x: tokens("x", streams * hidden),
            flat: tokens("flat", streams * hidden),
            gates: tokens("gates", self.gates.width()),
            input: tokens("input", hidden),
            normed: tokens("normed", hidden),
            sublayer: tokens("sublayer", hidden),
            q_latent: tokens("q_latent", self.q_rank),
            q: tokens("q", heads * dim),
            row: tokens("row", dim),
            attended: tokens("attended", heads * dim),
            grouped: tokens("grouped", self.groups * self.group_rank),
            entry: tokens("entry", dim),
            index_entry: tokens("index_entry", self.index_dim),
            index_q: tokens("index_q", self.index_heads * self.index_dim),
            index_weights: tokens("index_weights", self.index_heads),
            list: tokens("index_list", self.index_top_k),
            choice: self.moe.values(builder),
            shared: MlpValues::named(builder, self.shared.intermediate, ["shared_gate", "shared_up"]),
            shared_out: builder.tokens("shared_expert", hidden),
        }
    }

    fn prologue(&self, _: &mut ProgramBuilder, v: &Values) -> BlockBuilder {
        let mut block = BlockBuilder::new("prologue");
        let table = block.weight("embed", &format!("{}.weight", self.names.embed), &[self.vocab, self.hidden], Some(0));
        block.op(Embed::scaled(1.0), &[], &[v.input], &[table]);
        block.op(Repeat { count: self.streams }, &[v.input], &[v.x], &[]);
        block
    }

    fn epilogue(&self, builder: &mut ProgramBuilder, v: &Values) -> (BlockBuilder, ValueId) {
        let (streams, hidden) = (self.streams, self.hidden);
        let last = builder.rows("last", streams * hidden);
        let flat = builder.rows("last_flat", streams * hidden);
        let gates = builder.rows("last_gates", streams);
        let input = builder.rows("last_input", hidden);
        let logits = builder.rows("logits", self.vocab);
        let mut block = BlockBuilder::new("epilogue");
        block.op(SelectRows, &[v.x], &[last], &[]);
        let op = HyperGates { mixes: false, ..self.gates.clone() };
        self.gate(&mut block, "hc_head", op, [last, flat, gates, input]);
        self.norm.put(&mut block, self.names.norm, "norm", hidden, (input, input));
        let head = block.weight("lm_head", &format!("{}.weight", self.names.head), &[self.vocab, hidden], Some(0));
        block.op(Linear { bias: false }, &[input], &[logits], &[head]);
        (block, logits)
    }

    /// One stream out of several, by the gates below `module`: of streams, flattened streams, gates and input.
    fn gate(&self, block: &mut BlockBuilder, module: &str, op: HyperGates, [x, flat, gates, input]: [ValueId; 4]) {
        let (all, width) = (self.streams * self.hidden, op.width());
        weightless(block, self.eps, all, (x, flat));
        let map = block.weight("hyper_map", &format!("{module}_fn"), &[width, all], None);
        block.op(Linear { bias: false }, &[flat], &[gates], &[map]);
        let scale = block.weight("hyper_scale", &format!("{module}_scale"), &[if op.mixes { 3 } else { 1 }], None);
        let base = block.weight("hyper_base", &format!("{module}_base"), &[width], None);
        block.op(op, &[gates], &[gates], &[scale, base]);
        block.op(HyperRead { streams: self.streams }, &[x, gates], &[input], &[]);
    }

    fn layer(&self, builder: &mut ProgramBuilder, v: &Values, kind: Kind) -> BlockBuilder {
        let name = match (kind.beyond, kind.by_token) {
            (Beyond::Nothing, false) => "layer.window",
            (Beyond::Nothing, true) => "layer.window.hash",
            (Beyond::Best(_), false) => "layer.csa",
            (Beyond::Best(_), true) => "layer.csa.hash",
            (Beyond::All(_), false) => "layer.hca",
            (Beyond::All(_), true) => "layer.hca.hash",
        };
        let mut block = BlockBuilder::under(name, self.names.layer);
        let streams = [v.x, v.flat, v.gates, v.input];
        self.gate(&mut block, "hc_attn", self.gates.clone(), streams);
        self.norm.put(&mut block, "attn_norm", "attn_norm", self.hidden, (v.input, v.normed));
        self.attention(builder, &mut block, v, kind.beyond);
        block.op(HyperJoin { streams: self.streams }, &[v.x, v.sublayer, v.gates], &[v.x], &[]);
        self.gate(&mut block, "hc_ffn", self.gates.clone(), streams);
        self.norm.put(&mut block, "ffn_norm", "ffn_norm", self.hidden, (v.input, v.normed));
        self.experts(&mut block, v, kind.by_token);
        block.op(HyperJoin { streams: self.streams }, &[v.x, v.sublayer, v.gates], &[v.x], &[]);
        block
    }

    fn experts(&self, block: &mut BlockBuilder, v: &Values, by_token: bool) {
        let mut moe = self.moe.clone();
        let count = moe.experts.experts;
        let map = Map::columns(count, self.hidden);
        block.linear("router", moe.router, map, v.normed, v.choice.logits);
        (moe.route.by_token, moe.route.biased) = (by_token, !by_token);
        let weight = match by_token {
            true => block.weight(EXPERT_TABLE, "ffn.gate.tid2eid", &[self.vocab, moe.route.top_k], None),
            false => block.weight("choice_bias", "ffn.gate.bias", &[count], None),
        };
        block.op(moe.route.clone(), &[v.choice.logits], &[v.choice.ids, v.choice.weights], &[weight]);
        moe.run(block, v.choice, (v.normed, v.sublayer));
        let Mlp { intermediate, activation, .. } = self.shared;
        for (role, out) in [("w1", v.shared.gate), ("w3", v.shared.up)] {
            let map = Map::columns(intermediate, self.hidden);
            block.linear(role, &format!("ffn.shared_experts.{role}"), map, v.normed, out);
        }
        let act = GatedAct { activation, limit: Some(self.limit) };
        block.op(act, &[v.shared.gate, v.shared.up], &[v.shared.gate], &[]);
        let map = Map::gather(self.hidden, intermediate);
        block.linear("w2", "ffn.shared_experts.w2", map, v.shared.gate, v.shared_out);
        block.op(Add::SUM, &[v.sublayer, v.shared_out], &[v.sublayer], &[]);
    }

    fn attention(&self, builder: &mut ProgramBuilder, block: &mut BlockBuilder, v: &Values, beyond: Beyond) {
        let Self { hidden, heads, dim, q_rank, .. } = *self;
        let rope = &self.ropes[usize::from(beyond != Beyond::Nothing)];
        block.linear("wq_a", "attn.wq_a", Map::columns(q_rank, hidden), v.normed, v.q_latent);
        self.norm.put(block, "attn.q_norm", "q_norm", q_rank, (v.q_latent, v.q_latent));
        block.linear("wq_b", "attn.wq_b", Map::columns(heads * dim, q_rank), v.q_latent, v.q);
        weightless(block, self.eps, dim, (v.q, v.q));
        block.linear("wkv", "attn.wkv", Map::columns(dim, hidden), v.normed, v.row);
        self.norm.put(block, self.names.kv_norm, "kv_norm", dim, (v.row, v.row));
        for value in [v.q, v.row] {
            block.op(at_end(rope, dim, 1), &[value], &[value], &[]);
        }
        let rows = block.state(StateDecl { kind: windowed(dim, 0, self.window), ..latent_state("latent", dim) });
        block.node(KvWrite { heads: 1, key_dim: dim, value_dim: 0 }, &[v.row, v.row], &[], &[], &[rows]);
        let (mut reads, mut states) = (vec![v.q], vec![rows]);
        if let Beyond::Best(rate) | Beyond::All(rate) = beyond {
            let best = beyond == Beyond::Best(rate);
            states.push(self.compress(builder, block, v, ("attn.compressor", v.entry), (rate, dim, best)));
            if best {
                self.index(builder, block, v, rate);
                reads.push(v.list);
            }
        }
        let sinks = block.weight("sinks", "attn.attn_sink", &[heads], Some(0));
        let attention = LatentAttention {
            heads,
            key_dim: dim,
            value_dim: dim,
            scale: (dim as f32).powf(-0.5),
            window: Some(self.window),
            sinks: true,
            entries: match beyond {
                Beyond::Nothing => None,
                Beyond::Best(rate) | Beyond::All(rate) => Some(rate),
            },
            chosen: matches!(beyond, Beyond::Best(_)),
            listed: self.index_top_k,
        };
        block.node(attention, &reads, &[v.attended], &[sinks], &states);
        let back = RopeTable { inv_freq: rope.inv_freq.iter().map(|f| -f).collect(), ..rope.clone() };
        block.op(at_end(&back, dim, 1), &[v.attended], &[v.attended], &[]);
        let (groups, rank) = (self.groups, self.group_rank);
        let weight = block.weight("wo_a", "attn.wo_a.weight", &[groups * rank, heads * dim / groups], Some(0));
        let op = HeadLinear { heads: groups, stride: rank, first: 0, transposed: false };
        block.op(op, &[v.attended], &[v.grouped], &[weight]);
        block.linear("wo_b", "attn.wo_b", Map::gather(hidden, groups * rank), v.grouped, v.sublayer);
    }

    /// Compressed windows into a state of their own.
    fn compress(
        &self,
        builder: &mut ProgramBuilder,
        block: &mut BlockBuilder,
        v: &Values,
        (module, entry): (&str, ValueId),
        (rate, dim, overlap): (usize, usize, bool),
    ) -> StateId {
        let op = Compress { rate, dim, overlap };
        let width = op.width();
        let raw = Raw::named(builder, module, width, overlap);
        for (role, to) in [("wkv", raw.rows), ("wgate", raw.scores)] {
            block.linear(role, &format!("{module}.{role}"), Map::columns(width, self.hidden), v.normed, to);
        }
        let state = |role| StateDecl { kind: windowed(width, width, op.reach()), ..latent_state(role, width) };
        let indexes = module.contains("indexer");
        let kept = block.state(state(if indexes { "index_raw" } else { "raw" }));
        let write = KvWrite { heads: 1, key_dim: width, value_dim: width };
        block.node(write, &[raw.rows, raw.scores], &[], &[], &[kept]);
        let places = block.weight("places", &format!("{module}.ape"), &[rate, width], None);
        block.node(op, &[], &[entry], &[places], &[kept]);
        self.norm.put(block, &format!("{module}.norm"), "entry_norm", dim, (entry, entry));
        block.op(at_end(&self.ropes[1], dim, rate), &[entry], &[entry], &[]);
        let entries = block.state(latent_state(if indexes { "index" } else { "entries" }, dim));
        block.node(KvWrite { heads: 1, key_dim: dim, value_dim: 0 }, &[entry, entry], &[], &[], &[entries]);
        entries
    }

    /// The compressed windows that are looked at.
    fn index(&self, builder: &mut ProgramBuilder, block: &mut BlockBuilder, v: &Values, rate: usize) {
        let (heads, dim) = (self.index_heads, self.index_dim);
        let keys = self.compress(builder, block, v, ("attn.indexer.compressor", v.index_entry), (rate, dim, true));
        let map = Map::columns(heads * dim, self.q_rank);
        block.linear("index_q", "attn.indexer.wq_b", map, v.q_latent, v.index_q);
        block.op(at_end(&self.ropes[1], dim, 1), &[v.index_q], &[v.index_q], &[]);
        let map = Map::columns(heads, self.hidden);
        block.linear("index_weights", "attn.indexer.weights_proj", map, v.normed, v.index_weights);
        let scale = (heads as f32 * dim as f32).powf(-0.5);
        let op = IndexTopK { heads, dim, top_k: self.index_top_k, every: rate, scale };
        block.node(op, &[v.index_q, v.index_weights], &[v.list], &[], &[keys]);
    }
}

impl Names {
    /// As published, or as files that number layers below `model` have them.
    fn of(source: &Source<'_>) -> Self {
        let published = (source.tensor)("embed.weight").is_some();
        let (layer, embed, norm, head) = match published {
            true => ("layers.{layer}.", "embed", "norm", "head"),
            false => ("model.layers.{layer}.", "model.embed_tokens", "model.norm", "lm_head"),
        };
        let has = |name: &str| (source.tensor)(&format!("{}{name}", layer.replace("{layer}", "0"))).is_some();
        // transformers saves it under another name than it was published.
        let kv_norm = if has("attn.norm.weight") { "attn.norm" } else { "attn.kv_norm" };
        Self { layer, embed, norm, head, kv_norm }
    }
}

impl Raw {
    fn named(builder: &mut ProgramBuilder, module: &str, width: usize, overlap: bool) -> Self {
        let names = match (module.contains("indexer"), overlap) {
            (true, _) => ["index_raw_rows", "index_raw_scores"],
            (false, true) => ["csa_raw_rows", "csa_raw_scores"],
            (false, false) => ["hca_raw_rows", "hca_raw_scores"],
        };
        let [rows, scores] = names.map(|name| builder.tokens(name, width));
        Self { rows, scores }
    }
}

/// Rows of one head of which only the last are read.
fn windowed(key_dim: usize, value_dim: usize, window: usize) -> StateKind {
    StateKind::Kv { heads: 1, key_dim, value_dim, window: Some(window) }
}

/// Rotation of the last elements of a head, in neighbouring pairs.
fn at_end(table: &RopeTable, head_dim: usize, every: usize) -> Rope {
    let offset = head_dim - 2 * table.inv_freq.len();
    Rope { offset, every, ..table.op(head_dim, RopePairs::Interleaved) }
}
