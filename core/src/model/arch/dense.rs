//! The dense decoder that most families vary: norm, attention, norm, gated MLP, each around a residual.
//!
//! A family fills a [`Dense`] from its config; this file turns it into blocks. A family that differs in more than
//! these fields writes its own blocks.

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
use crate::model::program::{
    Axis, Block, BlockUse, Entry, Op, OpNode, Program, Rollback, StateDecl, StateId, StateKind, ValueDecl, ValueId,
    WeightDecl, WeightId,
};
use std::sync::Arc;

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
        let values = self.values();
        let mut blocks = vec![self.prologue()];
        blocks.extend(self.kinds.iter().map(|kind| self.layer(kind)));
        blocks.push(self.epilogue(source.tied_head()?));
        let mut uses = vec![BlockUse { block: 0, layer: None }];
        uses.extend(
            self.layers.iter().enumerate().map(|(layer, kind)| BlockUse { block: 1 + kind, layer: Some(layer) }),
        );
        uses.push(BlockUse { block: blocks.len() - 1, layer: None });
        let program = Program {
            arch: self.arch,
            vocab: self.vocab,
            hidden: self.hidden,
            layers: self.layers.len(),
            max_context: self.max_context,
            values,
            blocks,
            entries: vec![Entry { name: "step", uses }],
            logits: v::LOGITS,
            skip_prefixes: vec!["rope_freqs."],
        };
        program.check()?;
        Ok(program)
    }

    fn values(&self) -> Vec<ValueDecl> {
        let tokens = |name, width| ValueDecl { name, axis: Axis::Tokens, width };
        let rows = |name, width| ValueDecl { name, axis: Axis::Rows, width };
        vec![
            tokens("x", self.hidden),
            tokens("normed", self.hidden),
            tokens("q", self.heads * self.head_dim),
            tokens("k", self.kv_heads * self.head_dim),
            tokens("v", self.kv_heads * self.head_dim),
            tokens("attended", self.heads * self.head_dim),
            tokens("sublayer", self.hidden),
            tokens("gate", self.intermediate),
            tokens("up", self.intermediate),
            rows("last", self.hidden),
            rows("logits", self.vocab),
        ]
    }

    fn prologue(&self) -> Block {
        let mut block = Builder::new("prologue");
        let table = block.weight("embed", "model.embed_tokens.weight", &[self.vocab, self.hidden], Some(0));
        block.op(Embed { scale: self.embed_scale }, &[], &[v::X], &[table]);
        block.done()
    }

    fn layer(&self, kind: &LayerKind) -> Block {
        let mut block = Builder::new(kind.name);
        self.norm(&mut block, self.norms.before_attention, v::X, v::NORMED);
        self.attention(&mut block, kind);
        self.residual(&mut block, self.norms.after_attention);
        self.norm(&mut block, self.norms.before_mlp, v::X, v::NORMED);
        self.mlp(&mut block);
        self.residual(&mut block, self.norms.after_mlp);
        block.done()
    }

    fn attention(&self, block: &mut Builder, kind: &LayerKind) {
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        for (role, out, width) in [("q_proj", v::Q, q_width), ("k_proj", v::K, kv_width), ("v_proj", v::V, kv_width)] {
            block.linear(
                role,
                &format!("self_attn.{role}"),
                [width, self.hidden],
                Some(0),
                self.qkv_bias,
                v::NORMED,
                out,
            );
        }
        if self.qk_norm {
            for (role, value) in [("q_norm", v::Q), ("k_norm", v::K)] {
                let weight = block.weight(
                    role,
                    &format!("model.layers.{{layer}}.self_attn.{role}.weight"),
                    &[self.head_dim],
                    None,
                );
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
            block.op(rope.clone(), &[v::Q], &[v::Q], &[]);
            block.op(rope, &[v::K], &[v::K], &[]);
        }
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        let kv = block.state(StateDecl {
            role: "kv",
            kind: StateKind::Kv { heads: kv_heads, key_dim: dim, value_dim: dim, window: kind.window },
            rollback: Rollback::Truncate,
        });
        block.stateful(KvWrite { heads: kv_heads, key_dim: dim, value_dim: dim }, &[v::K, v::V], &[], kv);
        let attention = Attention {
            heads: self.heads,
            kv_heads,
            key_dim: dim,
            value_dim: dim,
            scale: self.attention_scale,
            window: kind.window,
            softcap: self.attention_softcap,
        };
        block.stateful(attention, &[v::Q], &[v::ATTENDED], kv);
        block.linear(
            "o_proj",
            "self_attn.o_proj",
            [self.hidden, q_width],
            Some(1),
            self.o_bias,
            v::ATTENDED,
            v::SUBLAYER,
        );
    }

    fn mlp(&self, block: &mut Builder) {
        for (role, out) in [("gate_proj", v::GATE), ("up_proj", v::UP)] {
            let shape = [self.intermediate, self.hidden];
            block.linear(role, &format!("mlp.{role}"), shape, Some(0), self.mlp_bias, v::NORMED, out);
        }
        block.op(GatedAct { activation: self.activation }, &[v::GATE, v::UP], &[v::GATE], &[]);
        let shape = [self.hidden, self.intermediate];
        block.linear("down_proj", "mlp.down_proj", shape, Some(1), self.mlp_bias, v::GATE, v::SUBLAYER);
    }

    fn norm(&self, block: &mut Builder, name: &'static str, from: ValueId, to: ValueId) {
        let weight = block.weight(name, &format!("model.layers.{{layer}}.{name}.weight"), &[self.hidden], None);
        block.op(RmsNorm { group: self.hidden, eps: self.eps, offset: self.norm_offset }, &[from], &[to], &[weight]);
    }

    fn residual(&self, block: &mut Builder, norm: Option<&'static str>) {
        if let Some(name) = norm {
            self.norm(block, name, v::SUBLAYER, v::SUBLAYER);
        }
        block.op(Add, &[v::X, v::SUBLAYER], &[v::X], &[]);
    }

    fn epilogue(&self, tied: bool) -> Block {
        let mut block = Builder::new("epilogue");
        block.op(SelectRows, &[v::X], &[v::LAST], &[]);
        let norm = block.weight("norm", "model.norm.weight", &[self.hidden], None);
        block.op(
            RmsNorm { group: self.hidden, eps: self.eps, offset: self.norm_offset },
            &[v::LAST],
            &[v::LAST],
            &[norm],
        );
        let name = if tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let head = block.weight("lm_head", name, &[self.vocab, self.hidden], Some(0));
        block.op(Linear { bias: false }, &[v::LAST], &[v::LOGITS], &[head]);
        if let Some(cap) = self.logit_softcap {
            block.op(Softcap { cap }, &[v::LOGITS], &[v::LOGITS], &[]);
        }
        block.done()
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

/// The values of a dense decoder, in the order [`Dense::values`] declares them.
mod v {
    use super::ValueId;
    pub const X: ValueId = ValueId(0);
    pub const NORMED: ValueId = ValueId(1);
    pub const Q: ValueId = ValueId(2);
    pub const K: ValueId = ValueId(3);
    pub const V: ValueId = ValueId(4);
    pub const ATTENDED: ValueId = ValueId(5);
    pub const SUBLAYER: ValueId = ValueId(6);
    pub const GATE: ValueId = ValueId(7);
    pub const UP: ValueId = ValueId(8);
    pub const LAST: ValueId = ValueId(9);
    pub const LOGITS: ValueId = ValueId(10);
}

/// Collects a block.
struct Builder {
    block: Block,
}

impl Builder {
    fn new(kind: &'static str) -> Self {
        Self { block: Block { kind, weights: Vec::new(), states: Vec::new(), ops: Vec::new() } }
    }

    fn weight(&mut self, role: &'static str, tensor: &str, shape: &[usize], shard_axis: Option<usize>) -> WeightId {
        self.block.weights.push(WeightDecl { role, tensor: tensor.into(), shape: shape.to_vec(), shard_axis });
        WeightId(self.block.weights.len() as u32 - 1)
    }

    fn state(&mut self, state: StateDecl) -> StateId {
        self.block.states.push(state);
        StateId(self.block.states.len() as u32 - 1)
    }

    fn op(&mut self, op: impl Op, reads: &[ValueId], writes: &[ValueId], weights: &[WeightId]) {
        self.node(Arc::new(op), reads, writes, weights, &[]);
    }

    fn stateful(&mut self, op: impl Op, reads: &[ValueId], writes: &[ValueId], state: StateId) {
        self.node(Arc::new(op), reads, writes, &[], &[state]);
    }

    fn node(
        &mut self,
        op: Arc<dyn Op>,
        reads: &[ValueId],
        writes: &[ValueId],
        weights: &[WeightId],
        states: &[StateId],
    ) {
        self.block.ops.push(OpNode {
            op,
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            weights: weights.to_vec(),
            states: states.to_vec(),
        });
    }

    fn linear(
        &mut self,
        role: &'static str,
        module: &str,
        shape: [usize; 2],
        shard_axis: Option<usize>,
        bias: bool,
        from: ValueId,
        to: ValueId,
    ) {
        let mut weights =
            vec![self.weight(role, &format!("model.layers.{{layer}}.{module}.weight"), &shape, shard_axis)];
        if bias {
            let shard = shard_axis.filter(|axis| *axis == 0);
            weights.push(self.weight(role, &format!("model.layers.{{layer}}.{module}.bias"), &shape[..1], shard));
        }
        self.op(Linear { bias }, &[from], &[to], &weights);
    }

    fn done(self) -> Block {
        self.block
    }
}
