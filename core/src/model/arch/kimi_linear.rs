//! kimi_linear: delta nets with a decay for each key channel (KDA) among layers of latent attention without positions;
//! routed experts and shared ones from the `first_k_dense_replace`-th layer on.
//!
//! Reference: transformers `models/kimi_linear/modeling_kimi_linear.py`; Kimi Team 2025, arXiv:2510.26692. Keys and values of
//! latent attention are kept as heads see them; a part of each key is the same for all heads. Layer lists in
//! `linear_attn_config` count from 1.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::{LAYER, known_activation};
use super::hybrid::{conv_shape_at, divides};
use super::parts::latent::{Latent, LatentValues};
use super::parts::moe::{ExpertTensors, Moe, MoeValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Mlp, MlpValues, Norm};
use super::{ArchError, Family, Source};
use crate::json::Config;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::gated_delta::{GatedDelta, HeadOrder};
use crate::model::program::ops::gated_norm::GatedNorm;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::{Groups, MoeRoute, Score};
use crate::model::program::ops::short_conv::ShortConv;
use crate::model::program::{Program, StateDecl, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "kimi_linear", model_types: &["kimi_linear"], program };

/// What tells layers apart.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    full: bool,
    sparse: bool,
}

/// The delta net.
#[derive(Clone)]
struct Kda {
    rule: GatedDelta,
    kernel: usize,
    conv_stored: Vec<usize>,
    a_stored: Vec<usize>,
}

struct Kimi {
    ends: Ends,
    norm: Norm,
    eps: f32,
    latent: Latent,
    kda: Kda,
    mlp: Mlp,
    shared: Mlp,
    moe: Moe,
}

struct Values {
    stream: Stream,
    latent: LatentValues,
    kda: KdaValues,
    mlp: MlpValues,
    shared: MlpValues,
    routed: ValueId,
    choice: MoeValues,
}

struct KdaValues {
    raw: [ValueId; 3],
    mixed: [ValueId; 3],
    narrow: ValueId,
    a: ValueId,
    b: ValueId,
    gate: ValueId,
    out: ValueId,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let layers = config.positive("num_hidden_layers")?;
    let full = full_layers(config, layers)?;
    let model = Kimi::new(source, &full)?;
    let first = config.usize_or("first_k_dense_replace", 0)?;
    let every = config.usize_or("moe_layer_freq", 1)?.max(1);
    let mut builder = ProgramBuilder::new("kimi_linear");
    let values = model.values(&mut builder);
    let stream = values.stream;
    let prologue = builder.add(model.ends.embed("model.embed_tokens", 1.0, stream));
    let epilogue = builder.add(model.ends.head(model.norm, "model.norm", head_name(source.tied_head()?), stream));
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for (layer, full) in full.into_iter().enumerate() {
        let kind = Kind { full, sparse: layer >= first && layer.is_multiple_of(every) };
        let found = known.iter().find(|(other, _)| *other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(&values, kind));
            known.push((kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    builder.place(epilogue, None);
    let Ends { hidden, vocab } = model.ends;
    let longest = config.usize_or("max_position_embeddings", config.usize_or("model_max_length", 4096)?)?;
    builder.finish(&Sizes { vocab, hidden, layers, max_context: longest.max(1) }, stream.logits)
}

/// Which layers attend.
fn full_layers(config: &Config, layers: usize) -> Result<Vec<bool>, ArchError> {
    if let Some(types) = config.opt_str_list("layer_types")? {
        return Ok((0..layers).map(|i| types.get(i).is_some_and(|kind| kind == "full_attention")).collect());
    }
    let own = config.opt_object("linear_attn_config")?;
    let listed = own.map(|own| own.opt_usize_list("full_attn_layers")).transpose()?.flatten().unwrap_or_default();
    Ok((1..=layers).map(|i| listed.contains(&i)).collect())
}

impl Kimi {
    fn new(source: &Source<'_>, full: &[bool]) -> Result<Self, ArchError> {
        let config = source.config;
        let hidden = config.positive("hidden_size")?;
        let eps = config.f64_or("rms_norm_eps", 1e-5)? as f32;
        let activation = known_activation("hidden_act", config.opt_str("hidden_act")?.unwrap_or("silu"))?;
        let latent = Latent {
            heads: config.positive("num_attention_heads")?,
            q_rank: config.opt_usize("q_lora_rank")?.filter(|rank| *rank > 0),
            kv_rank: config.positive("kv_lora_rank")?,
            own: config.positive("qk_nope_head_dim")?,
            shared: config.positive("qk_rope_head_dim")?,
            value_dim: config.positive("v_head_dim")?,
            bias: config.bool_or("attention_bias", false)?,
            scale: 0.0,
            rope: None,
            maps_apart: false,
            indexer: None,
        };
        let latent = Latent { scale: (latent.key_dim() as f32).powf(-0.5), ..latent };
        let mlp = Mlp { hidden, intermediate: config.positive("intermediate_size")?, activation, bias: false };
        let units = config.positive("moe_intermediate_size")?;
        let shared = config.usize_or("num_shared_experts", 1)?.max(1).saturating_mul(units);
        Ok(Self {
            ends: Ends { hidden, vocab: config.positive("vocab_size")? },
            norm: Norm::Rms { eps, offset: 0.0 },
            eps,
            latent,
            kda: kda(source, full)?,
            mlp,
            shared: Mlp { intermediate: shared, ..mlp },
            moe: moe(config, hidden, units, activation)?,
        })
    }

    fn values(&self, builder: &mut ProgramBuilder) -> Values {
        Values {
            stream: self.ends.values(builder),
            latent: self.latent.values(builder),
            kda: self.kda.values(builder),
            mlp: MlpValues::new(builder, self.mlp.intermediate),
            shared: MlpValues::named(builder, self.shared.intermediate, ["shared_gate", "shared_up"]),
            routed: builder.tokens("routed", self.ends.hidden),
            choice: self.moe.values(builder),
        }
    }

    fn layer(&self, values: &Values, kind: Kind) -> BlockBuilder {
        let name = match (kind.full, kind.sparse) {
            (true, true) => "layer.full.moe",
            (true, false) => "layer.full",
            (false, true) => "layer.delta.moe",
            (false, false) => "layer.delta",
        };
        let mut block = BlockBuilder::under(name, LAYER);
        let (hidden, Stream { x, normed, sublayer, .. }) = (self.ends.hidden, values.stream);
        self.norm.put(&mut block, "input_layernorm", "input_norm", hidden, (x, normed));
        match kind.full {
            true => self.latent.put(&mut block, self.norm, hidden, &values.latent, (normed, sublayer)),
            false => self.kda.put(&mut block, self.eps, hidden, &values.kda, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        self.norm.put(&mut block, "post_attention_layernorm", "post_norm", hidden, (x, normed));
        if kind.sparse {
            let module = "block_sparse_moe.shared_experts";
            self.shared.put(&mut block, module, values.shared, (normed, sublayer));
            self.moe.put(&mut block, values.choice, (normed, values.routed));
            block.op(Add::SUM, &[sublayer, values.routed], &[sublayer], &[]);
        } else {
            self.mlp.put(&mut block, "mlp", values.mlp, (normed, sublayer));
        }
        stream::join(&mut block, 1.0, values.stream);
        block
    }
}

impl Kda {
    fn width(&self) -> usize {
        self.rule.key_heads * self.rule.key_dim
    }

    fn values(&self, builder: &mut ProgramBuilder) -> KdaValues {
        let width = self.width();
        let mut tokens = |name, width| builder.tokens(name, width);
        KdaValues {
            raw: [tokens("kda.q.raw", width), tokens("kda.k.raw", width), tokens("kda.v.raw", width)],
            mixed: [tokens("kda.q", width), tokens("kda.k", width), tokens("kda.v", width)],
            narrow: tokens("kda.narrow", self.rule.key_dim),
            a: tokens("kda.a", width),
            b: tokens("kda.b", self.rule.key_heads),
            gate: tokens("kda.gate", width),
            out: tokens("kda.out", width),
        }
    }

    fn put(&self, block: &mut BlockBuilder, eps: f32, hidden: usize, v: &KdaValues, (from, to): (ValueId, ValueId)) {
        let (width, heads, dim) = (self.width(), self.rule.key_heads, self.rule.key_dim);
        let conv = ShortConv { kernel: self.kernel, dilation: 1, bias: false, activation: Some(Activation::Silu) };
        for (i, (map, taps)) in
            [("q_proj", "q_conv1d"), ("k_proj", "k_conv1d"), ("v_proj", "v_conv1d")].iter().enumerate()
        {
            block.linear(map, &format!("self_attn.{map}"), Map::columns(width, hidden), from, v.raw[i]);
            let weight = block.weight(taps, &format!("self_attn.{taps}.weight"), &self.conv_stored, Some(0));
            let state = block.state(StateDecl::recurrent(taps, &[conv.reach(), width]));
            block.node(conv.clone(), &[v.raw[i]], &[v.mixed[i]], &[weight], &[state]);
        }
        for (narrow, wide, out) in [("f_a_proj", "f_b_proj", v.a), ("g_a_proj", "g_b_proj", v.gate)] {
            block.linear(narrow, &format!("self_attn.{narrow}"), Map::columns(dim, hidden), from, v.narrow);
            block.linear(wide, &format!("self_attn.{wide}"), Map::columns(width, dim), v.narrow, out);
        }
        block.linear("b_proj", "self_attn.b_proj", Map::columns(heads, hidden), from, v.b);
        let rate = block.weight("A_log", "self_attn.A_log", &self.a_stored, Some(0));
        let bias = block.weight("dt_bias", "self_attn.dt_bias", &[width], Some(0));
        let state = block.state(self.rule.state());
        let [q, k, value] = v.mixed;
        block.node(self.rule.clone(), &[q, k, value, v.a, v.b], &[v.out], &[rate, bias], &[state]);
        let norm = GatedNorm { group: dim, eps, activation: Activation::Sigmoid, gate_first: false };
        let weight = block.weight("o_norm", "self_attn.o_norm.weight", &[dim], None);
        block.op(norm, &[v.out, v.gate], &[v.out], &[weight]);
        block.linear("o_proj", "self_attn.o_proj", Map::gather(hidden, width), v.out, to);
    }
}

fn kda(source: &Source<'_>, full: &[bool]) -> Result<Kda, ArchError> {
    let config = source.config;
    let own = config.opt_object("linear_attn_config")?;
    let get = |old: &str, new: &str, default: usize| match &own {
        Some(own) => own.usize_or(old, default),
        None => config.usize_or(new, default),
    };
    let heads = get("num_heads", "linear_num_heads", 32)?.max(1);
    let dim = get("head_dim", "linear_head_dim", 128)?.max(1);
    let kernel = get("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?.max(1);
    let first = full.iter().position(|full| !full).unwrap_or(0);
    let of = |name: &str| format!("model.layers.{first}.self_attn.{name}");
    let a_stored = (source.tensor)(&of("A_log")).map_or_else(|| vec![heads], |tensor| tensor.shape().to_vec());
    if a_stored.iter().product::<usize>() != heads {
        return Err(ArchError::Shape { name: of("A_log"), found: a_stored, expected: vec![1, 1, heads, 1] });
    }
    Ok(Kda {
        rule: GatedDelta {
            key_heads: heads,
            value_heads: heads,
            key_dim: dim,
            value_dim: dim,
            by_channel: true,
            order: HeadOrder::Grouped,
            a_is_rate: source.storage.decay_as_rate,
        },
        kernel,
        conv_stored: conv_shape_at(source, &of("q_conv1d.weight"), heads * dim, kernel),
        a_stored,
    })
}

fn moe(config: &Config, hidden: usize, intermediate: usize, activation: Activation) -> Result<Moe, ArchError> {
    let (experts, top_k) = (config.positive("num_experts")?, config.positive("num_experts_per_token")?);
    let groups =
        Groups { count: config.usize_or("num_expert_group", 1)?.max(1), kept: config.usize_or("topk_group", 1)? };
    divides("num_experts", experts, "num_expert_group", groups.count)?;
    if top_k > experts / groups.count * groups.kept.min(groups.count) {
        let why = format!("{top_k} of {experts} experts");
        return Err(ArchError::Value { key: "num_experts_per_token".into(), why });
    }
    let score = match config.opt_str("moe_router_activation_func")?.unwrap_or("sigmoid") {
        "sigmoid" => Score::Sigmoid,
        "softmax" => Score::Softmax,
        other => {
            let why = format!("`{other}` is neither sigmoid nor softmax");
            return Err(ArchError::Value { key: "moe_router_activation_func".into(), why });
        }
    };
    let route = MoeRoute {
        score,
        groups: Some(groups).filter(|groups| groups.count > 1),
        factor: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        biased: true,
        ..MoeRoute::softmax(top_k, config.bool_or("moe_renormalize", true)?)
    };
    Ok(Moe {
        hidden,
        route,
        experts: MoeExperts {
            experts,
            top_k,
            intermediate,
            maps: ExpertMaps::GateAndUp,
            act: ExpertAct::Plain(activation),
            biased: false,
            on_input: false,
        },
        tensors: ExpertTensors::Each { module: "block_sparse_moe.experts", names: ["w1", "w3", "w2"] },
        router: "block_sparse_moe.gate",
        router_bias: false,
        choice_bias: Some(("block_sparse_moe.gate.e_score_correction_bias", false)),
    })
}
