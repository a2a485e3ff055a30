//! falcon_h1: a Mamba-2 mixer and attention side by side in every layer, with a factor on nearly everything.
//!
//! Reference: transformers `models/falcon_h1/modeling_falcon_h1.py`; Zuo et al. 2025, arXiv:2507.22448.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER};
use super::mamba::{expanded, mixer};
use super::parts::mamba::{Mixer, MixerValues, OutputNorm};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "falcon_h1", model_types: &["falcon_h1"], program };

/// Factors on what flows through a layer.
struct Multipliers {
    attention_in: f32,
    attention_out: f32,
    key: f32,
    mamba_in: f32,
    mamba_out: f32,
    gate: f32,
    down: f32,
}

struct Falcon {
    ends: Ends,
    norm: Norm,
    attention: AttentionShape,
    bias: bool,
    rope: RopeTable,
    pairs: RopePairs,
    mixer: Mixer,
    mlp: Mlp,
    by: Multipliers,
}

#[derive(Clone, Copy)]
struct Values {
    stream: Stream,
    attention: AttentionValues,
    mixer: MixerValues,
    mlp: MlpValues,
    /// The normed stream times a sublayer's own factor.
    scaled: ValueId,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let dense = Dense::from_config("falcon_h1", source)?;
    let (hidden, head_dim) = (dense.hidden, dense.head_dim);
    let old = OldKeys { theta: "rope_theta", default_theta: 100_000.0, scaled: true };
    let model = Falcon {
        ends: Ends { hidden, vocab: dense.vocab },
        norm: Norm::Rms { eps: config.f64_or("rms_norm_eps", 1e-5)? as f32, offset: 0.0 },
        attention: AttentionShape { hidden, heads: dense.heads, kv_heads: dense.kv_heads, head_dim },
        bias: dense.qkv_bias,
        rope: table(source, "full_attention", head_dim, &old)?,
        pairs: dense.pairs,
        mixer: falcon_mixer(source)?,
        mlp: Mlp { hidden, intermediate: dense.intermediate, activation: dense.activation, bias: dense.mlp_bias },
        by: multipliers(source)?,
    };
    let embed_scale = config.f64_or("embedding_multiplier", 1.0)? as f32;
    let head_scale = config.f64_or("lm_head_multiplier", 1.0)? as f32;
    let mut builder = ProgramBuilder::new("falcon_h1");
    let values = Values {
        stream: model.ends.values(&mut builder),
        attention: model.attention.values(&mut builder),
        mixer: model.mixer.values(&mut builder),
        mlp: MlpValues::new(&mut builder, model.mlp.intermediate),
        scaled: builder.tokens("scaled", hidden),
    };
    let stream = values.stream;
    let prologue = builder.add(model.ends.embed("model.embed_tokens", embed_scale, stream));
    let layer = builder.add(model.layer(values));
    let mut epilogue = model.ends.head(model.norm, "model.final_layernorm", head_name(source.tied_head()?), stream);
    scale(&mut epilogue, head_scale, (stream.logits, stream.logits));
    let epilogue = builder.add(epilogue);
    builder.place(prologue, None);
    (0..dense.layers.len()).for_each(|i| builder.place(layer, Some(i)));
    builder.place(epilogue, None);
    let sizes = Sizes { vocab: dense.vocab, hidden, layers: dense.layers.len(), max_context: dense.max_context };
    builder.finish(&sizes, stream.logits)
}

fn falcon_mixer(source: &Source<'_>) -> Result<Mixer, ArchError> {
    let config = source.config;
    let inner = match config.opt_usize("mamba_d_ssm")? {
        Some(inner) if inner > 0 => inner,
        _ => expanded(source)?,
    };
    let norm = match (config.bool_or("mamba_rms_norm", false)?, config.bool_or("mamba_norm_before_gate", true)?) {
        (false, _) => OutputNorm::None,
        (true, true) => OutputNorm::NormFirst,
        (true, false) => OutputNorm::GateFirst,
    };
    let multipliers = list(source, "ssm_multipliers")?;
    Ok(Mixer { multipliers, ..mixer(source, inner, norm)? })
}

fn multipliers(source: &Source<'_>) -> Result<Multipliers, ArchError> {
    let get = |key| source.config.f64_or(key, 1.0).map(|v| v as f32);
    let [gate, down] = list(source, "mlp_multipliers")?;
    Ok(Multipliers {
        attention_in: get("attention_in_multiplier")?,
        attention_out: get("attention_out_multiplier")?,
        key: get("key_multiplier")?,
        mamba_in: get("ssm_in_multiplier")?,
        mamba_out: get("ssm_out_multiplier")?,
        gate,
        down,
    })
}

/// `N` factors, all 1 if the key is absent.
fn list<const N: usize>(source: &Source<'_>, key: &str) -> Result<[f32; N], ArchError> {
    let Some(given) = source.config.opt_f64_list(key)? else { return Ok([1.0; N]) };
    let given: Vec<f32> = given.into_iter().map(|v| v as f32).collect();
    let found = given.len();
    given.try_into().map_err(|_| ArchError::Value { key: key.into(), why: format!("{found} factors, not {N}") })
}

fn scale(block: &mut BlockBuilder, factor: f32, (from, to): (ValueId, ValueId)) {
    if factor != 1.0 || from != to {
        block.op(Scale { factor }, &[from], &[to], &[]);
    }
}

impl Falcon {
    fn layer(&self, values: Values) -> BlockBuilder {
        let Stream { x, normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        let mut block = BlockBuilder::under("layer", LAYER);
        self.norm.put(&mut block, "input_layernorm", "input_norm", hidden, (x, normed));
        scale(&mut block, self.by.mamba_in, (normed, values.scaled));
        self.mixer.put(&mut block, "mamba", values.mixer, (values.scaled, sublayer));
        stream::join(&mut block, self.by.mamba_out, values.stream);
        self.attend(&mut block, values);
        stream::join(&mut block, self.by.attention_out, values.stream);
        self.norm.put(&mut block, "pre_ff_layernorm", "pre_ff_norm", hidden, (x, normed));
        self.mlp(&mut block, values);
        stream::join(&mut block, self.by.down, values.stream);
        block
    }

    fn attend(&self, block: &mut BlockBuilder, values: Values) {
        let (shape, inner, Stream { normed, sublayer, .. }) = (self.attention, values.attention, values.stream);
        scale(block, self.by.attention_in, (normed, values.scaled));
        shape.project(block, "self_attn", self.bias, values.scaled, inner);
        scale(block, self.by.key, (inner.k, inner.k));
        shape.rotate(block, &self.rope, self.pairs, inner);
        shape.attend(block, Attend::full(shape.usual_scale()), inner);
        shape.gather(block, "self_attn.o_proj", self.bias, inner, sublayer);
    }

    fn mlp(&self, block: &mut BlockBuilder, values: Values) {
        let (Mlp { hidden, intermediate, bias, .. }, Stream { normed, sublayer, .. }) = (self.mlp, values.stream);
        for (role, out) in [("gate_proj", values.mlp.gate), ("up_proj", values.mlp.up)] {
            let map = Map::columns(intermediate, hidden).with_bias(bias);
            block.linear(role, &format!("feed_forward.{role}"), map, normed, out);
        }
        scale(block, self.by.gate, (values.mlp.gate, values.mlp.gate));
        self.mlp.act_and_down(block, "feed_forward.down_proj", values.mlp, sublayer);
    }
}
