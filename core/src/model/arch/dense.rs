//! The dense decoder that most families vary: norm, attention, norm, gated MLP, each around a residual.
//!
//! A family fills a [`Dense`] from its config; this file turns it into blocks. A family that differs in more than
//! these fields writes its own blocks.

use super::builder::{BlockBuilder, ProgramBuilder, Sizes};
pub(crate) use super::parts::NormOver;
use super::parts::kinds::kinds;
use super::parts::moe::{Moe, MoeValues};
use super::parts::shared_expert::{SharedExpert, SharedValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::{ArchError, Source, rope::RopeTable};
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::ops::softcap::Softcap;
use crate::model::program::{Program, ValueId};

/// One kind of layer.
pub struct LayerKind {
    /// Block kind: `layer.full`, `layer.window`.
    pub name: &'static str,
    /// Its rotary table; `None` for layers without positions.
    pub rope: Option<RopeTable>,
    /// Keys visible to a query, if limited.
    pub window: Option<usize>,
    /// Whether it has experts instead of one MLP.
    pub experts: bool,
}

/// Norms around the two sublayers, by their tensor names within a layer.
pub struct NormNames {
    /// Before attention.
    pub before_attention: Option<&'static str>,
    /// On the attention's output, before the residual.
    pub after_attention: Option<&'static str>,
    /// Before the MLP.
    pub before_mlp: Option<&'static str>,
    /// On the MLP's output, before the residual.
    pub after_mlp: Option<&'static str>,
}

/// llama's norm names.
pub const LLAMA_NORMS: NormNames = NormNames {
    before_attention: Some("input_layernorm"),
    after_attention: None,
    before_mlp: Some("post_attention_layernorm"),
    after_mlp: None,
};

/// The names where a sublayer's output is normed and its input is not: olmo2, exaone4.
pub const POST_NORMS: NormNames = NormNames {
    before_attention: None,
    after_attention: Some("post_attention_layernorm"),
    before_mlp: None,
    after_mlp: Some("post_feedforward_layernorm"),
};

/// The names where both ends of a sublayer are normed: gemma2, gemma3.
pub const SANDWICH_NORMS: NormNames = NormNames {
    before_attention: Some("input_layernorm"),
    after_attention: Some("post_attention_layernorm"),
    before_mlp: Some("pre_feedforward_layernorm"),
    after_mlp: Some("post_feedforward_layernorm"),
};

/// Where the tensors of a layer are, in most families.
pub(super) const LAYER: &str = "model.layers.{layer}.";

/// A dense decoder.
pub struct Dense {
    /// Family name.
    pub arch: &'static str,
    /// Residual width.
    pub hidden: usize,
    /// MLP width.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    /// Tokens.
    pub vocab: usize,
    /// Longest context.
    pub max_context: usize,
    /// Norm epsilon.
    pub eps: f32,
    /// Added to stored norm weights.
    pub norm_offset: f32,
    /// Factor on embeddings.
    pub embed_scale: f32,
    /// Factor on q·k.
    pub attention_scale: f32,
    /// Cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Factor on a sublayer's output where it joins the stream.
    pub residual_scale: f32,
    /// Factor on logits.
    pub logit_scale: f32,
    /// Cap on logits.
    pub logit_softcap: Option<f32>,
    /// MLP activation.
    pub activation: Activation,
    /// Bias on q, k, v.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub o_bias: bool,
    /// Bias in the MLP.
    pub mlp_bias: bool,
    /// Whether q, k and v are stored as one map.
    pub fused_qkv: bool,
    /// Whether gate and up are stored as one map.
    pub fused_gate_up: bool,
    /// Norm on queries and keys, if any.
    pub qk_norm: Option<NormOver>,
    /// Names of those norms.
    pub qk_norm_names: [&'static str; 2],
    /// Whether they come after rotation.
    pub qk_norm_after_rope: bool,
    /// The tensor of attention's sinks, if it has any.
    pub sinks: Option<&'static str>,
    /// Experts of the layers that have them.
    pub(crate) moe: Option<(Moe, Option<SharedExpert>)>,
    /// Whether the head has a bias.
    pub head_bias: bool,
    /// Tensors to leave out.
    pub skips: Vec<String>,
    /// Norms of a layer.
    pub norms: NormNames,
    /// Pair layout of rotary embedding in the stored q and k rows.
    pub pairs: RopePairs,
    /// Kinds of layer.
    pub kinds: Vec<LayerKind>,
    /// Kind of each layer, by index into `kinds`.
    pub layers: Vec<usize>,
}

impl Dense {
    /// The fields that llama-like configs share; families change what differs.
    ///
    /// # Errors
    /// A key is missing or wrong, or sizes do not fit each other.
    pub fn from_config(arch: &'static str, source: &Source<'_>) -> Result<Self, ArchError> {
        Self::from_config_with(arch, source, source.config.positive("intermediate_size")?)
    }

    /// The same with an MLP width that the config states otherwise.
    ///
    /// # Errors
    /// As [`Dense::from_config`].
    pub fn from_config_with(arch: &'static str, source: &Source<'_>, intermediate: usize) -> Result<Self, ArchError> {
        let config = source.config;
        let hidden = config.positive("hidden_size")?;
        let heads = config.positive("num_attention_heads")?;
        let kv_heads = nonzero(config.usize_or("num_key_value_heads", heads)?, "num_key_value_heads")?;
        if heads % kv_heads != 0 {
            return Err(ArchError::Value {
                key: "num_attention_heads".into(),
                why: format!("{heads} is no multiple of num_key_value_heads = {kv_heads}"),
            });
        }
        let head_dim = match config.usize_or("head_dim", 0)? {
            0 if hidden % heads == 0 => hidden / heads,
            0 => {
                return Err(ArchError::Value {
                    key: "hidden_size".into(),
                    why: format!("{hidden} is no multiple of num_attention_heads = {heads} and there is no `head_dim`"),
                });
            }
            given => given,
        };
        let layers = config.positive("num_hidden_layers")?;
        if layers > 10_000 {
            return Err(ArchError::Value {
                key: "num_hidden_layers".into(),
                why: format!("{layers} is not plausible"),
            });
        }
        let activation = config.opt_str("hidden_act")?.unwrap_or("silu");
        Ok(Self {
            arch,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            vocab: config.positive("vocab_size")?,
            max_context: nonzero(config.usize_or("max_position_embeddings", 2048)?, "max_position_embeddings")?,
            eps: config.f64_or("rms_norm_eps", 1e-6)? as f32,
            norm_offset: 0.0,
            embed_scale: 1.0,
            attention_scale: (head_dim as f32).powf(-0.5),
            attention_softcap: None,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            activation: known_activation("hidden_act", activation)?,
            qkv_bias: config.bool_or("attention_bias", false)?,
            o_bias: config.bool_or("attention_bias", false)?,
            mlp_bias: config.bool_or("mlp_bias", false)?,
            fused_qkv: false,
            fused_gate_up: false,
            qk_norm: None,
            qk_norm_names: ["q_norm", "k_norm"],
            qk_norm_after_rope: false,
            sinks: None,
            moe: None,
            head_bias: false,
            skips: Vec::new(),
            norms: LLAMA_NORMS,
            pairs: if source.storage.rope_interleaved_qk { RopePairs::Interleaved } else { RopePairs::HalfSplit },
            kinds: Vec::new(),
            layers: vec![0; layers],
        })
    }

    /// Layers of two kinds, `layer` without a window and `layer.window` with one, chosen by `layer_types` or, where the
    /// config has none, by `default_windowed`.
    ///
    /// # Errors
    /// `layer_types` that do not fit, or layers with a window and no `sliding_window`.
    pub fn window_layers(
        &mut self,
        source: &Source<'_>,
        (full, windowed): (Option<RopeTable>, Option<RopeTable>),
        default_windowed: impl Fn(usize) -> bool,
    ) -> Result<(), ArchError> {
        let names = ["full_attention", "sliding_attention"];
        let kind = |i| usize::from(default_windowed(i));
        self.layers = kinds(source, "layer_types", &names, self.layers.len(), kind)?;
        self.kinds = vec![LayerKind { name: "layer", rope: full, window: None, experts: false }];
        if self.layers.contains(&1) {
            let window = Some(source.config.positive("sliding_window")?);
            self.kinds.push(LayerKind { name: "layer.window", rope: windowed, window, experts: false });
        }
        Ok(())
    }

    /// Gives experts to the layers of which `has` says so. Kinds and layers must be set before.
    pub(crate) fn with_experts(&mut self, moe: Moe, shared: Option<SharedExpert>, has: impl Fn(usize) -> bool) {
        let plain = self.kinds.len();
        for i in 0..plain {
            let LayerKind { name, rope, window, .. } = &self.kinds[i];
            let name = if *name == "layer" { "layer.moe" } else { "layer.window.moe" };
            let kind = LayerKind { name, rope: rope.clone(), window: *window, experts: true };
            self.kinds.push(kind);
        }
        self.layers.iter_mut().enumerate().filter(|(i, _)| has(*i)).for_each(|(_, kind)| *kind += plain);
        self.moe = Some((moe, shared));
    }

    /// The program.
    ///
    /// # Errors
    /// The head is missing.
    pub fn program(&self, source: &Source<'_>) -> Result<Program, ArchError> {
        let mut builder = ProgramBuilder::new(self.arch);
        builder.skip("rope_freqs.");
        builder.skip_other_modalities();
        // Old files keep the rotary table they were trained with; it follows from the config.
        builder.skip("*.rotary_emb.inv_freq");
        let ends = Ends { hidden: self.hidden, vocab: self.vocab };
        let v = Values {
            stream: ends.values(&mut builder),
            attention: self.attention().values(&mut builder),
            mlp: MlpValues::new(&mut builder, self.intermediate),
            moe: self.moe.as_ref().map(|(moe, shared)| {
                (moe.values(&mut builder), shared.as_ref().map(|shared| shared.values(&mut builder)))
            }),
        };
        self.skips.iter().for_each(|skip| builder.skip(skip.as_str()));
        let prologue = builder.add(ends.embed("model.embed_tokens", self.embed_scale, v.stream));
        let kinds: Vec<usize> = self.kinds.iter().map(|kind| builder.add(self.layer(&v, kind))).collect();
        let bias = Some("lm_head.bias").filter(|_| self.head_bias);
        let head = (head_name(source.tied_head()?), bias);
        let mut epilogue = ends.head_biased(self.norm(), "model.norm", head, v.stream);
        if self.logit_scale != 1.0 {
            epilogue.op(Scale { factor: self.logit_scale }, &[v.stream.logits], &[v.stream.logits], &[]);
        }
        if let Some(cap) = self.logit_softcap {
            epilogue.op(Softcap { cap }, &[v.stream.logits], &[v.stream.logits], &[]);
        }
        let epilogue = builder.add(epilogue);
        builder.place(prologue, None);
        self.layers.iter().enumerate().for_each(|(layer, kind)| builder.place(kinds[*kind], Some(layer)));
        builder.place(epilogue, None);
        let sizes =
            Sizes { vocab: self.vocab, hidden: self.hidden, layers: self.layers.len(), max_context: self.max_context };
        builder.finish(&sizes, v.stream.logits)
    }

    fn attention(&self) -> AttentionShape {
        let Self { hidden, heads, kv_heads, head_dim, .. } = *self;
        AttentionShape { hidden, heads, kv_heads, head_dim }
    }

    fn mlp(&self) -> Mlp {
        let Self { hidden, intermediate, activation, mlp_bias: bias, .. } = *self;
        Mlp { hidden, intermediate, activation, bias }
    }

    fn norm(&self) -> Norm {
        Norm::Rms { eps: self.eps, offset: self.norm_offset }
    }

    fn layer(&self, v: &Values, kind: &LayerKind) -> BlockBuilder {
        let mut block = BlockBuilder::under(kind.name, LAYER);
        let sublayer = v.stream.sublayer;
        let normed = self.enter(&mut block, v, self.norms.before_attention);
        let shape = self.attention();
        match self.fused_qkv {
            true => shape.project_fused(&mut block, "self_attn.qkv_proj", (self.qkv_bias, false), normed, v.attention),
            false => shape.project(&mut block, "self_attn", self.qkv_bias, normed, v.attention),
        }
        let norm = |block: &mut BlockBuilder, now: bool| {
            if let Some(over) = self.qk_norm.filter(|_| now) {
                shape.norm_named(block, "self_attn", self.qk_norm_names, (self.norm(), over), v.attention);
            }
        };
        norm(&mut block, !self.qk_norm_after_rope);
        if let Some(table) = &kind.rope {
            shape.rotate(&mut block, table, self.pairs, v.attention);
        }
        norm(&mut block, self.qk_norm_after_rope);
        let how = Attend {
            sinks: self.sinks,
            softcap: self.attention_softcap,
            ..Attend::full(self.attention_scale).window(kind.window)
        };
        shape.attend(&mut block, how, v.attention);
        shape.gather(&mut block, "self_attn.o_proj", self.o_bias, v.attention, sublayer);
        self.leave(&mut block, v, self.norms.after_attention);
        let normed = self.enter(&mut block, v, self.norms.before_mlp);
        match (&self.moe, v.moe) {
            (Some((moe, shared)), Some((values, shared_values))) if kind.experts => {
                moe.put(&mut block, values, (normed, sublayer));
                if let (Some(shared), Some(values)) = (shared, shared_values) {
                    shared.join(&mut block, values, (normed, sublayer));
                }
            }
            _ if self.fused_gate_up => self.mlp().put_fused(&mut block, "mlp", v.mlp, (normed, sublayer)),
            _ => self.mlp().put(&mut block, "mlp", v.mlp, (normed, sublayer)),
        }
        self.leave(&mut block, v, self.norms.after_mlp);
        block
    }

    /// What a sublayer reads: the stream, normed or as it is.
    fn enter(&self, block: &mut BlockBuilder, v: &Values, norm: Option<&'static str>) -> ValueId {
        let Some(name) = norm else { return v.stream.x };
        self.norm().put(block, name, name, self.hidden, (v.stream.x, v.stream.normed));
        v.stream.normed
    }

    fn leave(&self, block: &mut BlockBuilder, v: &Values, norm: Option<&'static str>) {
        if let Some(name) = norm {
            self.norm().put(block, name, name, self.hidden, (v.stream.sublayer, v.stream.sublayer));
        }
        stream::join(block, self.residual_scale, v.stream);
    }
}

/// The activation a config names.
///
/// # Errors
/// One that is not supported.
pub fn known_activation(key: &str, name: &str) -> Result<Activation, ArchError> {
    Activation::from_config(name).ok_or_else(|| ArchError::Value {
        key: key.into(),
        why: format!("activation `{name}` is not supported; supported are silu, gelu_pytorch_tanh, relu2"),
    })
}

fn nonzero(value: usize, key: &str) -> Result<usize, ArchError> {
    if value == 0 { Err(ArchError::Value { key: key.into(), why: "must not be 0".into() }) } else { Ok(value) }
}

/// The values of a dense decoder.
struct Values {
    stream: Stream,
    attention: AttentionValues,
    mlp: MlpValues,
    moe: Option<(MoeValues, Option<SharedValues>)>,
}
