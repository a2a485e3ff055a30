//! gemma4: window and full layers that differ in head size, key heads and rotation; per-layer embeddings, a factor on each
//! layer, keys and values of earlier layers in the last ones, by option keys that are values too,
//! and experts beside the MLP.
//!
//! Reference: transformers `models/gemma4/modeling_gemma4.py`. Norm weights are stored as they are used; values are normed
//! without a weight; attention scores have no factor.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER, known_activation};
use super::gemma3::cap;
use super::parts::kinds::{kinds, owners, skip_shared};
use super::parts::moe::{ExpertTensors, Moe, MoeValues, expert_counts};
use super::parts::norm::weightless;
use super::parts::per_layer::{PerLayer, PerLayerValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm, NormOver};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::json::Config;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::MoeRoute;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::ops::softcap::Softcap;
use crate::model::program::ops::take_columns::TakeColumns;
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "gemma4", model_types: &["gemma4_text", "gemma4"], program };

const FULL: usize = 0;
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

/// Layers whose description is the same share a block.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    /// Index into [`KINDS`].
    reach: usize,
    owner: Option<usize>,
}

/// Attention of one reach.
struct Reach {
    shape: AttentionShape,
    rope: RopeTable,
    window: Option<usize>,
    /// Whether values are the keys before norm and rotation.
    keys_are_values: bool,
}

struct Model {
    hidden: usize,
    eps: f32,
    bias: bool,
    reaches: [Reach; 2],
    mlp: Mlp,
    /// The MLP of layers without keys and values of their own.
    shared_mlp: Mlp,
    per_layer: Option<PerLayer>,
    /// Experts beside the MLP.
    moe: Option<Moe>,
}

struct Values {
    stream: Stream,
    attention: [AttentionValues; 2],
    mlp: MlpValues,
    shared_mlp: MlpValues,
    per_layer: Option<PerLayerValues>,
    moe: Option<(MoeValues, Routed)>,
}

/// What experts work on beside the choice.
#[derive(Clone, Copy)]
struct Routed {
    judged: ValueId,
    out: ValueId,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    refuse(config)?;
    let dense = Dense::from_config("gemma4", source)?;
    let (hidden, vocab, layers) = (dense.hidden, dense.vocab, dense.layers.len());
    let mut reach = kinds(source, "layer_types", &KINDS, layers, |i| usize::from((i + 1) % 6 != 0))?;
    // Whatever the config says of it, the last layer sees everything.
    reach[layers - 1] = FULL;
    let owners = owners(source, &reach, 0)?;
    let model = model(source, &dense, &reach)?;

    let mut builder = ProgramBuilder::new("gemma4");
    builder.skip_other_modalities();
    skip_shared(&mut builder, &owners);
    let ends = Ends { hidden, vocab };
    let values = model.values(&mut builder, ends);
    let mut prologue = ends.embed("model.embed_tokens", (hidden as f32).sqrt(), values.stream);
    if let (Some(per_layer), Some(own)) = (&model.per_layer, values.per_layer) {
        per_layer.embed(&mut prologue, own, values.stream);
    }
    let prologue = builder.add(prologue);
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for layer in 0..layers {
        let kind = Kind { reach: reach[layer], owner: owners[layer] };
        let found = known.iter().find(|(other, _)| *other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(&values, kind));
            known.push((kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    let logits = values.stream.logits;
    let mut epilogue = ends.head(model.norm(), "model.norm", head_name(source.tied_head()?), values.stream);
    if let Some(cap) = cap(source, "final_logit_softcapping", 0.0)? {
        epilogue.op(Softcap { cap }, &[logits], &[logits], &[]);
    }
    let epilogue = builder.add(epilogue);
    builder.place(epilogue, None);
    builder.finish(&Sizes { vocab, hidden, layers, max_context: dense.max_context }, logits)
}

/// What is not computed.
fn refuse(config: &Config) -> Result<(), ArchError> {
    let wrong = |key: &str, why: &str| Err(ArchError::Value { key: key.into(), why: why.into() });
    if config.opt_str("use_bidirectional_attention")? == Some("all") {
        return wrong("use_bidirectional_attention", "only causal text models are supported");
    }
    Ok(())
}

fn model(source: &Source<'_>, dense: &Dense, reach: &[usize]) -> Result<Model, ArchError> {
    let config = source.config;
    let Dense { hidden, intermediate, eps, .. } = *dense;
    let activation =
        known_activation("hidden_activation", config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    let keys_are_values = config.bool_or("attention_k_eq_v", false)?;
    let window = Some(config.usize_or("sliding_window", 512)?);
    let local = AttentionShape { hidden, heads: dense.heads, kv_heads: dense.kv_heads, head_dim: dense.head_dim };
    let full = full_shape(config, local, reach, keys_are_values)?;
    let rope = |kind: usize, shape: &AttentionShape, theta| {
        let old = OldKeys { theta: "rope_theta", default_theta: theta, scaled: true };
        table(source, KINDS[kind], shape.head_dim, &old)
    };
    if config.opt_object("rope_parameters")?.is_none() {
        let why = "it is missing, and gemma4's rotation cannot be told without it".into();
        return Err(ArchError::Value { key: "rope_parameters".into(), why });
    }
    let mlp = Mlp { hidden, intermediate, activation, bias: false };
    let wide = config.bool_or("use_double_wide_mlp", false)?;
    let width = config.usize_or("hidden_size_per_layer_input", 256)?;
    let vocab = config.usize_or("vocab_size_per_layer_input", 262_144)?;
    let per_layer = PerLayer { hidden, width, layers: reach.len(), vocab, eps, activation };
    Ok(Model {
        hidden,
        eps,
        bias: dense.qkv_bias,
        reaches: [
            Reach { rope: rope(FULL, &full, 1_000_000.0)?, shape: full, window: None, keys_are_values },
            Reach { rope: rope(1, &local, 10_000.0)?, shape: local, window, keys_are_values: false },
        ],
        mlp,
        shared_mlp: Mlp { intermediate: if wide { 2 * intermediate } else { intermediate }, ..mlp },
        per_layer: Some(per_layer).filter(|_| width > 0),
        moe: match config.bool_or("enable_moe_block", false)? {
            true => Some(experts(config, hidden, activation)?),
            false => None,
        },
    })
}

/// The experts; their factors are part of the choice.
fn experts(config: &Config, hidden: usize, activation: Activation) -> Result<Moe, ArchError> {
    let (experts, top_k) = expert_counts(config, "num_experts", ("top_k_experts", 0))?;
    Ok(Moe {
        hidden,
        route: MoeRoute { expert_factors: true, ..MoeRoute::softmax(top_k, true) },
        experts: MoeExperts {
            experts,
            top_k,
            intermediate: config.positive("moe_intermediate_size")?,
            maps: ExpertMaps::Fused,
            act: ExpertAct::Plain(activation),
            biased: false,
            on_input: false,
        },
        tensors: ExpertTensors::Stacked {
            gate_up: "experts.gate_up_proj",
            down: "experts.down_proj",
            transposed: false,
        },
        router: "router.proj",
        router_bias: false,
        choice_bias: None,
    })
}

/// The shape of full layers: by `per_layer_config`, in which all of them must be alike, or by the global sizes.
fn full_shape(
    config: &Config,
    local: AttentionShape,
    reach: &[usize],
    keys_are_values: bool,
) -> Result<AttentionShape, ArchError> {
    let Some(by_layer) = config.opt_object("per_layer_config")? else {
        let kv_heads = match keys_are_values {
            true => config.usize_or("num_global_key_value_heads", local.kv_heads)?,
            false => local.kv_heads,
        };
        return Ok(AttentionShape { head_dim: config.usize_or("global_head_dim", 512)?, kv_heads, ..local });
    };
    let mut found: [Option<AttentionShape>; 2] = [None, None];
    for (layer, kind) in reach.iter().enumerate() {
        let shape = match by_layer.opt_object(&layer.to_string())? {
            None => local,
            Some(own) => AttentionShape {
                head_dim: own.usize_or("head_dim", local.head_dim)?,
                kv_heads: own.usize_or("num_key_value_heads", local.kv_heads)?,
                ..local
            },
        };
        let first = found[*kind].get_or_insert(shape);
        if *first != shape || (*kind != FULL && shape != local) {
            let why = format!("layer {layer} differs from others of its kind, which is not supported");
            return Err(ArchError::Value { key: "per_layer_config".into(), why });
        }
    }
    Ok(found[FULL].unwrap_or(local))
}

impl Model {
    fn norm(&self) -> Norm {
        Norm::Rms { eps: self.eps, offset: 0.0 }
    }

    fn values(&self, builder: &mut ProgramBuilder, ends: Ends) -> Values {
        let names = [["q", "k", "v", "attended"], ["q_window", "k_window", "v_window", "attended_window"]];
        let mlp = MlpValues::new(builder, self.mlp.intermediate);
        let shared_mlp = match self.shared_mlp.intermediate == self.mlp.intermediate {
            true => mlp,
            false => MlpValues {
                gate: builder.tokens("gate_wide", self.shared_mlp.intermediate),
                up: builder.tokens("up_wide", self.shared_mlp.intermediate),
            },
        };
        Values {
            stream: ends.values(builder),
            attention: [0, 1].map(|i| self.reaches[i].shape.values_as(builder, names[i])),
            mlp,
            shared_mlp,
            per_layer: self.per_layer.map(|per_layer| per_layer.values(builder)),
            moe: self.moe.as_ref().map(|moe| {
                let mut own = |name| builder.tokens(name, self.hidden);
                let routed = Routed { judged: own("judged"), out: own("routed") };
                (moe.values(builder), routed)
            }),
        }
    }

    fn layer(&self, v: &Values, kind: Kind) -> BlockBuilder {
        let name = ["layer.full", "layer.window"][kind.reach];
        let mut block = BlockBuilder::under(name, LAYER);
        let Stream { x, normed, sublayer, .. } = v.stream;
        let norm = |block: &mut BlockBuilder, name, io| self.norm().put(block, name, name, self.hidden, io);
        norm(&mut block, "input_layernorm", (x, normed));
        self.attention(&mut block, v, kind);
        norm(&mut block, "post_attention_layernorm", (sublayer, sublayer));
        stream::join(&mut block, 1.0, v.stream);
        norm(&mut block, "pre_feedforward_layernorm", (x, normed));
        let (mlp, units) = if kind.owner.is_some() { (self.shared_mlp, v.shared_mlp) } else { (self.mlp, v.mlp) };
        mlp.put(&mut block, "mlp", units, (normed, sublayer));
        if let (Some(moe), Some((choice, routed))) = (&self.moe, v.moe) {
            norm(&mut block, "post_feedforward_layernorm_1", (sublayer, sublayer));
            self.choose(&mut block, moe, choice, (x, routed.judged));
            norm(&mut block, "pre_feedforward_layernorm_2", (x, normed));
            moe.run(&mut block, choice, (normed, routed.out));
            norm(&mut block, "post_feedforward_layernorm_2", (routed.out, routed.out));
            block.op(Add::SUM, &[sublayer, routed.out], &[sublayer], &[]);
        }
        norm(&mut block, "post_feedforward_layernorm", (sublayer, sublayer));
        stream::join(&mut block, 1.0, v.stream);
        if let (Some(per_layer), Some(own)) = (&self.per_layer, v.per_layer) {
            per_layer.gate(&mut block, own, (x, sublayer));
            stream::join(&mut block, 1.0, v.stream);
        }
        let factor = block.weight("layer_scalar", "layer_scalar", &[1], None);
        block.op(Scale { factor: 1.0 }, &[x], &[x], &[factor]);
        block
    }

    /// The choice of experts by the stream itself, normed and scaled channel by channel.
    fn choose(&self, block: &mut BlockBuilder, moe: &Moe, values: MoeValues, (from, judged): (ValueId, ValueId)) {
        weightless(block, self.eps, self.hidden, (from, judged));
        let scale = block.weight("router_scale", "router.scale", &[self.hidden], None);
        block.op(Scale { factor: (self.hidden as f32).powf(-0.5) }, &[judged], &[judged], &[scale]);
        let count = moe.experts.experts;
        block.linear("router", moe.router, Map::columns(count, self.hidden), judged, values.logits);
        let factors = block.weight("expert_factors", "router.per_expert_scale", &[count], None);
        block.op(moe.route.clone(), &[values.logits], &[values.ids, values.weights], &[factors]);
    }

    fn attention(&self, block: &mut BlockBuilder, v: &Values, kind: Kind) {
        let Reach { shape, rope, window, keys_are_values } = &self.reaches[kind.reach];
        let (values, from) = (v.attention[kind.reach], v.stream.normed);
        let how = Attend::full(1.0).window(*window);
        let map = |out| Map::columns(out, self.hidden).with_bias(self.bias);
        block.linear("q_proj", "self_attn.q_proj", map(shape.q_width()), from, values.q);
        match kind.owner {
            None => {
                block.linear("k_proj", "self_attn.k_proj", map(shape.kv_width()), from, values.k);
                if *keys_are_values {
                    let all = TakeColumns { group: shape.kv_width(), at: 0, len: shape.kv_width() };
                    block.op(all, &[values.k], &[values.v], &[]);
                } else {
                    block.linear("v_proj", "self_attn.v_proj", map(shape.kv_width()), from, values.v);
                }
                shape.norm_queries_and_keys(block, "self_attn", (self.norm(), NormOver::Head), values);
                weightless(block, self.eps, shape.head_dim, (values.v, values.v));
                shape.rotate(block, rope, RopePairs::HalfSplit, values);
                shape.attend(block, how, values);
            }
            Some(owner) => {
                self.norm().put(block, "self_attn.q_norm", "q_norm", shape.head_dim, (values.q, values.q));
                shape.rotate_one(block, rope, RopePairs::HalfSplit, values.q);
                shape.attend_shared(block, how, owner, values);
            }
        }
        shape.gather(block, "self_attn.o_proj", self.bias, values, v.stream.sublayer);
    }
}
