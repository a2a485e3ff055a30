//! lfm2: gated short convolutions among a few layers of attention with norms on queries and keys; lfm2_moe: routed
//! experts from the `num_dense_layers`-th layer on.
//!
//! Reference: transformers `models/lfm2/modeling_lfm2.py`, `models/lfm2_moe`; Liquid AI 2025. The norm before the head is called
//! `embedding_norm`. The stored MLP may be narrower than `intermediate_size` says: `block_auto_adjust_ff_dim`.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::LAYER;
use super::hybrid::{conv_shape, divides};
use super::parts::conv::{GatedConv, GatedConvValues};
use super::parts::kinds::kinds;
use super::parts::moe::{ExpertTensors, Moe, MoeValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::{MoeRoute, Score};
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "lfm2", model_types: &["lfm2", "lfm2_moe"], program };

struct Lfm2 {
    ends: Ends,
    norm: Norm,
    attention: AttentionShape,
    rope: RopeTable,
    pairs: RopePairs,
    conv: GatedConv,
    mlp: Mlp,
    moe: Option<Moe>,
}

/// What tells layers apart.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    full: bool,
    sparse: bool,
}

#[derive(Clone, Copy)]
struct Values {
    stream: Stream,
    attention: AttentionValues,
    conv: GatedConvValues,
    mlp: MlpValues,
    moe: Option<MoeValues>,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let layers = config.positive("num_hidden_layers")?;
    let attends = attending(source, layers)?;
    let model = Lfm2::from_config(source)?;
    let mut builder = ProgramBuilder::new("lfm2");
    let values = Values {
        stream: model.ends.values(&mut builder),
        attention: model.attention.values(&mut builder),
        conv: model.conv.values(&mut builder),
        mlp: MlpValues::new(&mut builder, model.mlp.intermediate),
        moe: model.moe.as_ref().map(|moe| moe.values(&mut builder)),
    };
    let prologue = builder.add(model.ends.embed("model.embed_tokens", 1.0, values.stream));
    let head = head_name(source.tied_head()?);
    let epilogue = builder.add(model.ends.head(model.norm, "model.embedding_norm", head, values.stream));
    let dense_layers = if model.moe.is_some() { config.usize_or("num_dense_layers", 2)? } else { layers };
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for (layer, full) in attends.into_iter().enumerate() {
        let kind = Kind { full, sparse: layer >= dense_layers };
        let found = known.iter().find(|(other, _)| *other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(values, kind));
            known.push((kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    builder.place(epilogue, None);
    let Ends { hidden, vocab } = model.ends;
    let max_context = config.usize_or("max_position_embeddings", 128_000)?.max(1);
    builder.finish(&Sizes { vocab, hidden, layers, max_context }, values.stream.logits)
}

/// Which layers attend: by `layer_types`, else those of `full_attn_idxs`.
pub(super) fn attending(source: &Source<'_>, layers: usize) -> Result<Vec<bool>, ArchError> {
    let listed = source.config.opt_usize_list("full_attn_idxs")?;
    let default = |i| usize::from(listed.as_ref().is_none_or(|full| full.contains(&i)));
    let found = kinds(source, "layer_types", &["conv", "full_attention"], layers, default)?;
    Ok(found.into_iter().map(|kind| kind == 1).collect())
}

impl Lfm2 {
    fn from_config(source: &Source<'_>) -> Result<Self, ArchError> {
        let config = source.config;
        let sparse = config.str("model_type")? == "lfm2_moe";
        let intermediate = if sparse { config.positive("intermediate_size")? } else { mlp_width(source)? };
        let hidden = config.positive("hidden_size")?;
        let heads = config.positive("num_attention_heads")?;
        let kv_heads = config.usize_or("num_key_value_heads", heads)?.max(1);
        divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
        divides("hidden_size", hidden, "num_attention_heads", heads)?;
        let head_dim = config.usize_or("head_dim", hidden / heads)?.max(1);
        let old = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
        let kernel = config.usize_or("conv_L_cache", 3)?.max(1);
        Ok(Self {
            ends: Ends { hidden, vocab: config.positive("vocab_size")? },
            norm: Norm::Rms { eps: config.f64_or("norm_eps", 1e-5)? as f32, offset: 0.0 },
            attention: AttentionShape { hidden, heads, kv_heads, head_dim },
            rope: table(source, "full_attention", head_dim, &old)?,
            pairs: if source.storage.rope_interleaved_qk { RopePairs::Interleaved } else { RopePairs::HalfSplit },
            conv: GatedConv {
                hidden,
                kernel,
                bias: config.bool_or("conv_bias", false)?,
                conv_stored: conv_shape(source, "conv.conv.weight", hidden, kernel),
            },
            mlp: Mlp { hidden, intermediate, activation: Activation::Silu, bias: false },
            moe: if sparse { Some(experts(source, hidden)?) } else { None },
        })
    }

    fn layer(&self, values: Values, kind: Kind) -> BlockBuilder {
        let Stream { x, normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        let name = match (kind.full, kind.sparse) {
            (true, true) => "layer.full.moe",
            (true, false) => "layer.full",
            (false, true) => "layer.conv.moe",
            (false, false) => "layer.conv",
        };
        let mut block = BlockBuilder::under(name, LAYER);
        self.norm.put(&mut block, "operator_norm", "operator_norm", hidden, (x, normed));
        match kind.full {
            true => self.attend(&mut block, values),
            false => self.conv.put(&mut block, "conv", values.conv, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        self.norm.put(&mut block, "ffn_norm", "ffn_norm", hidden, (x, normed));
        match (&self.moe, values.moe) {
            (Some(moe), Some(choice)) if kind.sparse => moe.put(&mut block, choice, (normed, sublayer)),
            _ => self.mlp(&mut block, values.mlp, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        block
    }

    fn attend(&self, block: &mut BlockBuilder, values: Values) {
        let (shape, inner, Stream { normed, sublayer, .. }) = (self.attention, values.attention, values.stream);
        shape.project(block, "self_attn", false, normed, inner);
        for (role, value) in [("q_layernorm", inner.q), ("k_layernorm", inner.k)] {
            self.norm.put(block, &format!("self_attn.{role}"), role, shape.head_dim, (value, value));
        }
        shape.rotate(block, &self.rope, self.pairs, inner);
        shape.attend(block, Attend::full(shape.usual_scale()), inner);
        shape.gather(block, "self_attn.out_proj", false, inner, sublayer);
    }

    fn mlp(&self, block: &mut BlockBuilder, values: MlpValues, (from, to): (ValueId, ValueId)) {
        for (role, module, out) in [("gate_proj", "w1", values.gate), ("up_proj", "w3", values.up)] {
            let map = Map::columns(self.mlp.intermediate, self.mlp.hidden);
            block.linear(role, &format!("feed_forward.{module}"), map, from, out);
        }
        self.mlp.act_and_down(block, "feed_forward.w2", values, to);
    }
}

fn experts(source: &Source<'_>, hidden: usize) -> Result<Moe, ArchError> {
    let config = source.config;
    let (experts, top_k) = (config.positive("num_experts")?, config.positive("num_experts_per_tok")?);
    if top_k > experts {
        let why = format!("{top_k} of {experts} experts");
        return Err(ArchError::Value { key: "num_experts_per_tok".into(), why });
    }
    let biased = config.bool_or("use_expert_bias", true)?;
    let route = MoeRoute {
        score: Score::Sigmoid,
        factor: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        biased,
        ..MoeRoute::softmax(top_k, config.bool_or("norm_topk_prob", true)?)
    };
    Ok(Moe {
        hidden,
        route,
        experts: MoeExperts {
            experts,
            top_k,
            intermediate: config.positive("moe_intermediate_size")?,
            maps: ExpertMaps::GateAndUp,
            act: ExpertAct::Plain(Activation::Silu),
            biased: false,
            on_input: false,
        },
        tensors: ExpertTensors::Each { module: "feed_forward.experts", names: ["w1", "w3", "w2"] },
        router: "feed_forward.gate",
        router_bias: false,
        choice_bias: Some(("feed_forward.expert_bias", false)).filter(|_| biased),
    })
}

/// Hidden units of the MLP: two thirds of what the config says, times a factor, rounded up to a multiple.
fn mlp_width(source: &Source<'_>) -> Result<usize, ArchError> {
    let config = source.config;
    let given = config.usize_or("block_ff_dim", config.usize_or("intermediate_size", 12_288)?)?.max(1);
    if !config.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let adjusted = given.saturating_mul(2) / 3;
    let adjusted = (config.f64_or("block_ffn_dim_multiplier", 1.0)? * adjusted as f64) as usize;
    let multiple = config.usize_or("block_multiple_of", 256)?.max(1);
    Ok(adjusted.div_ceil(multiple).max(1).saturating_mul(multiple))
}
