//! The dense decoder that most families vary: norm, attention, norm, gated MLP, each around a residual.
//!
//! A family fills a [`Dense`] from its config; this file turns it into blocks. A family that differs in more than
//! these fields writes its own blocks.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::{ArchError, Source, rope::RopeTable};
use crate::model::program::ops::add::Add;
use crate::model::program::ops::attention::Attention;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::gated_act::{Activation, GatedAct};
use crate::model::program::ops::kv_write::KvWrite;
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::rms_norm::RmsNorm;
use crate::model::program::ops::rope::{Rope, RopePairs};
use crate::model::program::ops::select_rows::SelectRows;
use crate::model::program::ops::softcap::Softcap;
use crate::model::program::{Program, Rollback, StateDecl, StateKind, ValueId};

/// One kind of layer.
pub struct LayerKind {
    /// Block kind: `layer.full`, `layer.window`.
    pub name: &'static str,
    /// Its rotary table; `None` for layers without positions.
    pub rope: Option<RopeTable>,
    /// Keys visible to a query, if limited.
    pub window: Option<usize>,
}

/// Norms around the two sublayers, by their tensor names within a layer.
pub struct NormNames {
    /// Before attention.
    pub before_attention: &'static str,
    /// On the attention's output, before the residual.
    pub after_attention: Option<&'static str>,
    /// Before the MLP.
    pub before_mlp: &'static str,
    /// On the MLP's output, before the residual.
    pub after_mlp: Option<&'static str>,
}

/// llama's norm names.
pub const LLAMA_NORMS: NormNames = NormNames {
    before_attention: "input_layernorm",
    after_attention: None,
    before_mlp: "post_attention_layernorm",
    after_mlp: None,
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
    /// Norm on each query and key head.
    pub qk_norm: bool,
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
            intermediate: config.positive("intermediate_size")?,
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
            logit_softcap: None,
            activation: known_activation("hidden_act", activation)?,
            qkv_bias: config.bool_or("attention_bias", false)?,
            o_bias: config.bool_or("attention_bias", false)?,
            mlp_bias: config.bool_or("mlp_bias", false)?,
            qk_norm: false,
            norms: LLAMA_NORMS,
            pairs: if source.storage.rope_interleaved_qk { RopePairs::Interleaved } else { RopePairs::HalfSplit },
            kinds: Vec::new(),
            layers: vec![0; layers],
        })
    }

    /// The program.
    ///
    /// # Errors
    /// The head is missing.
    pub fn program(&self, source: &Source<'_>) -> Result<Program, ArchError> {
        let mut builder = ProgramBuilder::new(self.arch);
        builder.skip("rope_freqs.");
        let v = self.values(&mut builder);
        let prologue = builder.add(self.prologue(&v));
        let kinds: Vec<usize> = self.kinds.iter().map(|kind| builder.add(self.layer(&v, kind))).collect();
        let epilogue = builder.add(self.epilogue(&v, source.tied_head()?));
        builder.place(prologue, None);
        self.layers.iter().enumerate().for_each(|(layer, kind)| builder.place(kinds[*kind], Some(layer)));
        builder.place(epilogue, None);
        let sizes =
            Sizes { vocab: self.vocab, hidden: self.hidden, layers: self.layers.len(), max_context: self.max_context };
        builder.finish(&sizes, v.logits)
    }

    fn values(&self, builder: &mut ProgramBuilder) -> Values {
        Values {
            x: builder.tokens("x", self.hidden),
            normed: builder.tokens("normed", self.hidden),
            q: builder.tokens("q", self.heads * self.head_dim),
            k: builder.tokens("k", self.kv_heads * self.head_dim),
            v: builder.tokens("v", self.kv_heads * self.head_dim),
            attended: builder.tokens("attended", self.heads * self.head_dim),
            sublayer: builder.tokens("sublayer", self.hidden),
            gate: builder.tokens("gate", self.intermediate),
            up: builder.tokens("up", self.intermediate),
            last: builder.rows("last", self.hidden),
            logits: builder.rows("logits", self.vocab),
        }
    }

    fn prologue(&self, v: &Values) -> BlockBuilder {
        let mut block = BlockBuilder::new("prologue");
        let table = block.weight("embed", "model.embed_tokens.weight", &[self.vocab, self.hidden], Some(0));
        block.op(Embed { scale: self.embed_scale }, &[], &[v.x], &[table]);
        block
    }

    fn layer(&self, v: &Values, kind: &LayerKind) -> BlockBuilder {
        let mut block = BlockBuilder::under(kind.name, LAYER);
        self.norm(&mut block, self.norms.before_attention, v.x, v.normed);
        self.attention(&mut block, v, kind);
        self.residual(&mut block, v, self.norms.after_attention);
        self.norm(&mut block, self.norms.before_mlp, v.x, v.normed);
        self.mlp(&mut block, v);
        self.residual(&mut block, v, self.norms.after_mlp);
        block
    }

    fn attention(&self, block: &mut BlockBuilder, v: &Values, kind: &LayerKind) {
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        for (role, out, width) in [("q_proj", v.q, q_width), ("k_proj", v.k, kv_width), ("v_proj", v.v, kv_width)] {
            let map = Map::columns(width, self.hidden).with_bias(self.qkv_bias);
            block.linear(role, &format!("self_attn.{role}"), map, v.normed, out);
        }
        if self.qk_norm {
            for (role, value) in [("q_norm", v.q), ("k_norm", v.k)] {
                let weight = block.weight(role, &format!("self_attn.{role}.weight"), &[self.head_dim], None);
                let norm = RmsNorm { group: self.head_dim, eps: self.eps, offset: self.norm_offset };
                block.op(norm, &[value], &[value], &[weight]);
            }
        }
        if let Some(table) = &kind.rope {
            let rope = Rope {
                head_dim: self.head_dim,
                inv_freq: table.inv_freq.clone(),
                magnitude: table.magnitude,
                pairs: self.pairs,
            };
            block.op(rope.clone(), &[v.q], &[v.q], &[]);
            block.op(rope, &[v.k], &[v.k], &[]);
        }
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        let kv = block.state(StateDecl {
            role: "kv",
            kind: StateKind::Kv { heads: kv_heads, key_dim: dim, value_dim: dim, window: kind.window },
            rollback: Rollback::Truncate,
        });
        let write = KvWrite { heads: kv_heads, key_dim: dim, value_dim: dim };
        block.node(write, &[v.k, v.v], &[], &[], &[kv]);
        let attention = Attention {
            heads: self.heads,
            kv_heads,
            key_dim: dim,
            value_dim: dim,
            scale: self.attention_scale,
            window: kind.window,
            softcap: self.attention_softcap,
        };
        block.node(attention, &[v.q], &[v.attended], &[], &[kv]);
        let map = Map::gather(self.hidden, q_width).with_bias(self.o_bias);
        block.linear("o_proj", "self_attn.o_proj", map, v.attended, v.sublayer);
    }

    fn mlp(&self, block: &mut BlockBuilder, v: &Values) {
        for (role, out) in [("gate_proj", v.gate), ("up_proj", v.up)] {
            let map = Map::columns(self.intermediate, self.hidden).with_bias(self.mlp_bias);
            block.linear(role, &format!("mlp.{role}"), map, v.normed, out);
        }
        block.op(GatedAct { activation: self.activation }, &[v.gate, v.up], &[v.gate], &[]);
        let map = Map::gather(self.hidden, self.intermediate).with_bias(self.mlp_bias);
        block.linear("down_proj", "mlp.down_proj", map, v.gate, v.sublayer);
    }

    fn norm(&self, block: &mut BlockBuilder, name: &'static str, from: ValueId, to: ValueId) {
        let weight = block.weight(name, &format!("{name}.weight"), &[self.hidden], None);
        block.op(RmsNorm { group: self.hidden, eps: self.eps, offset: self.norm_offset }, &[from], &[to], &[weight]);
    }

    fn residual(&self, block: &mut BlockBuilder, v: &Values, norm: Option<&'static str>) {
        if let Some(name) = norm {
            self.norm(block, name, v.sublayer, v.sublayer);
        }
        block.op(Add, &[v.x, v.sublayer], &[v.x], &[]);
    }

    fn epilogue(&self, v: &Values, tied: bool) -> BlockBuilder {
        let mut block = BlockBuilder::new("epilogue");
        block.op(SelectRows, &[v.x], &[v.last], &[]);
        let norm = block.weight("norm", "model.norm.weight", &[self.hidden], None);
        block.op(
            RmsNorm { group: self.hidden, eps: self.eps, offset: self.norm_offset },
            &[v.last],
            &[v.last],
            &[norm],
        );
        let name = if tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let head = block.weight("lm_head", name, &[self.vocab, self.hidden], Some(0));
        block.op(Linear { bias: false }, &[v.last], &[v.logits], &[head]);
        if let Some(cap) = self.logit_softcap {
            block.op(Softcap { cap }, &[v.logits], &[v.logits], &[]);
        }
        block
    }
}

/// The activation a config names.
///
/// # Errors
/// One that is not supported.
pub fn known_activation(key: &str, name: &str) -> Result<Activation, ArchError> {
    Activation::from_config(name).ok_or_else(|| ArchError::Value {
        key: key.into(),
        why: format!("activation `{name}` is not supported; supported are silu, gelu_pytorch_tanh"),
    })
}

fn nonzero(value: usize, key: &str) -> Result<usize, ArchError> {
    if value == 0 { Err(ArchError::Value { key: key.into(), why: "must not be 0".into() }) } else { Ok(value) }
}

/// The values of a dense decoder.
struct Values {
    x: ValueId,
    normed: ValueId,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    attended: ValueId,
    sublayer: ValueId,
    gate: ValueId,
    up: ValueId,
    last: ValueId,
    logits: ValueId,
}
