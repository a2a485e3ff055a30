//! The hybrid decoder of the Qwen families: layers of gated delta nets among layers of gated attention, each followed
//! by an MLP or by experts.
//!
//! A family fills a [`Hybrid`] from its config; this file turns it into blocks. All norms but the delta nets' are
//! stored around zero (transformers `models/qwen3_next`, `models/qwen3_5`).

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes};
use super::dense::{LAYER, known_activation};
use super::parts::kinds::kinds;
use super::parts::moe::{ExpertTensors, GATE_UP_DOWN, Moe, MoeValues};
use super::parts::shared_expert::{SharedExpert, SharedValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{AttentionShape, DeltaNet, DeltaValues, GatedAttention, GatedAttentionValues, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Source};
use crate::model::program::ops::carry::Carry;
use crate::model::program::ops::concat::Concat;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::gated_delta::{GatedDelta, HeadOrder};
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::MoeRoute;
use crate::model::program::ops::select_rows::SelectRows;
use crate::model::program::{Program, ValueId};

/// A hybrid decoder.
pub(super) struct Hybrid {
    pub(super) arch: &'static str,
    pub(super) ends: Ends,
    pub(super) max_context: usize,
    pub(super) norm: Norm,
    pub(super) attention: GatedAttention,
    pub(super) delta: DeltaNet,
    pub(super) mlp: Mlp,
    pub(super) experts: Option<Experts>,
    /// Each layer's kind.
    pub(super) layers: Vec<Kind>,
}

/// What tells layers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Attends; a delta net otherwise.
    pub(super) full: bool,
    /// Has experts; an MLP otherwise.
    pub(super) sparse: bool,
}

/// Routed experts and the shared one.
pub(super) struct Experts {
    pub(super) routed: Moe,
    pub(super) shared: SharedExpert,
}

/// What a layer works on.
#[derive(Clone, Copy)]
struct Values {
    stream: Stream,
    attention: GatedAttentionValues,
    delta: DeltaValues,
    mlp: MlpValues,
    experts: Option<(MoeValues, SharedValues)>,
}

impl Hybrid {
    /// The fields the families share. `fused_by_head` says how the delta nets' maps are stored.
    ///
    /// # Errors
    /// A key is missing or wrong, or sizes do not fit each other.
    pub(super) fn from_config(arch: &'static str, source: &Source<'_>, fused_by_head: bool) -> Result<Self, ArchError> {
        let config = source.config;
        let hidden = config.positive("hidden_size")?;
        let layers = config.positive("num_hidden_layers")?;
        let eps = config.f64_or("rms_norm_eps", 1e-6)? as f32;
        let norm = Norm::Rms { eps, offset: source.storage.norm_weight_offset };
        let names = ["linear_attention", "full_attention", "indexed_attention"];
        let interval = config.usize_or("full_attention_interval", 4)?.max(1);
        let full = kinds(source, "layer_types", &names, layers, |i| usize::from((i + 1) % interval == 0))?;
        let activation = known_activation("hidden_act", config.opt_str("hidden_act")?.unwrap_or("silu"))?;
        Ok(Self {
            arch,
            ends: Ends { hidden, vocab: config.positive("vocab_size")? },
            max_context: config.usize_or("max_position_embeddings", 32_768)?.max(1),
            norm,
            attention: gated_attention(source, hidden, norm)?,
            delta: delta_net(source, hidden, eps, fused_by_head)?,
            mlp: Mlp { hidden, intermediate: config.usize_or("intermediate_size", 0)?, activation, bias: false },
            experts: None,
            layers: full.into_iter().map(|kind| Kind { full: kind > 0, sparse: false }).collect(),
        })
    }

    /// The same with experts: in every layer of `decoder_sparse_step` but those of `mlp_only_layers`, their weights of a
    /// token summing to one if `normalised`.
    ///
    /// # Errors
    /// A key is missing or wrong, or sizes do not fit each other.
    pub(super) fn with_experts(mut self, source: &Source<'_>, normalised: bool) -> Result<Self, ArchError> {
        let config = source.config;
        let step = config.usize_or("decoder_sparse_step", 1)?.max(1);
        let dense = config.opt_usize_list("mlp_only_layers")?.unwrap_or_default();
        for (i, kind) in self.layers.iter_mut().enumerate() {
            kind.sparse = (i + 1).is_multiple_of(step) && !dense.contains(&i);
        }
        let (count, top_k) = (config.positive("num_experts")?, config.positive("num_experts_per_tok")?);
        if top_k > count {
            let why = format!("{top_k} of {count} experts");
            return Err(ArchError::Value { key: "num_experts_per_tok".into(), why });
        }
        let first = self.layers.iter().position(|kind| kind.sparse).unwrap_or(0);
        let has = |name: &str| (source.tensor)(&format!("model.layers.{first}.mlp.experts.{name}")).is_some();
        let (stacked, apart) = (has("gate_up_proj"), has("gate_proj"));
        let routed = Moe {
            hidden: self.ends.hidden,
            route: MoeRoute::softmax(top_k, normalised),
            experts: MoeExperts {
                experts: count,
                top_k,
                intermediate: config.positive("moe_intermediate_size")?,
                maps: if stacked { ExpertMaps::Fused } else { ExpertMaps::GateAndUp },
                act: ExpertAct::Plain(self.mlp.activation),
                biased: false,
                on_input: false,
            },
            tensors: match stacked {
                _ if apart => {
                    ExpertTensors::Apart(["mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"])
                }
                true => ExpertTensors::Stacked {
                    gate_up: "mlp.experts.gate_up_proj",
                    down: "mlp.experts.down_proj",
                    transposed: false,
                },
                false => ExpertTensors::Each { module: "mlp.experts", names: GATE_UP_DOWN },
            },
            router: "mlp.gate",
            router_bias: false,
            choice_bias: None,
        };
        let intermediate = config.positive("shared_expert_intermediate_size")?;
        self.experts = Some(Experts {
            routed,
            shared: SharedExpert {
                mlp: Mlp { intermediate, ..self.mlp },
                module: "mlp.shared_expert",
                gate: Some("mlp.shared_expert_gate"),
            },
        });
        Ok(self)
    }

    /// The program.
    ///
    /// # Errors
    /// The head is missing.
    pub(super) fn program(&self, source: &Source<'_>) -> Result<Program, ArchError> {
        if self.mlp.intermediate == 0 && self.layers.iter().any(|kind| !kind.sparse) {
            return Err(ArchError::Value {
                key: "intermediate_size".into(),
                why: "layers without experts need it".into(),
            });
        }
        // No memory for an MLP that no layer has.
        let units = if self.layers.iter().all(|kind| kind.sparse) { 1 } else { self.mlp.intermediate };
        let mut builder = ProgramBuilder::new(self.arch);
        builder.skip("model.visual.");
        let values = Values {
            stream: self.ends.values(&mut builder),
            attention: self.attention.values(&mut builder),
            delta: self.delta.values(&mut builder),
            mlp: MlpValues::new(&mut builder, units),
            experts: self.experts.as_ref().map(|e| (e.routed.values(&mut builder), e.shared.values(&mut builder))),
        };
        let stream = values.stream;
        let prologue = builder.add(self.ends.embed("model.embed_tokens", 1.0, stream));
        let head = head_name(source.tied_head()?);
        let drafting = DraftingHead::find(source, self, &mut builder)?;
        let epilogue = builder.add(match &drafting {
            Some(drafting) => drafting.trunk_end(self, head, stream),
            None => self.ends.head(self.norm, "model.norm", head, stream),
        });
        builder.place(prologue, None);
        let mut known: Vec<(Kind, usize)> = Vec::new();
        for (layer, kind) in self.layers.iter().enumerate() {
            let found = known.iter().find(|(other, _)| other == kind).map(|(_, block)| *block);
            let block = found.unwrap_or_else(|| {
                let block = builder.add(self.layer(LAYER, values, *kind));
                known.push((*kind, block));
                block
            });
            builder.place(block, Some(layer));
        }
        builder.place(epilogue, None);
        if let Some(drafting) = drafting {
            drafting.place(self, head, values, &mut builder);
        }
        let sizes = Sizes {
            vocab: self.ends.vocab,
            hidden: self.ends.hidden,
            layers: self.layers.len(),
            max_context: self.max_context,
        };
        builder.finish(&sizes, stream.logits)
    }

    fn layer(&self, prefix: &'static str, values: Values, kind: Kind) -> BlockBuilder {
        let Stream { x, normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        let name = match (kind.full, kind.sparse) {
            (true, true) => "layer.full.moe",
            (true, false) => "layer.full",
            (false, true) => "layer.delta.moe",
            (false, false) => "layer.delta",
        };
        let mut block = BlockBuilder::under(name, prefix);
        self.norm.put(&mut block, "input_layernorm", "input_norm", hidden, (x, normed));
        match kind.full {
            true => self.attention.put(&mut block, "self_attn", values.attention, (normed, sublayer)),
            false => self.delta.put(&mut block, "linear_attn", values.delta, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        self.norm.put(&mut block, "post_attention_layernorm", "post_norm", hidden, (x, normed));
        match (&self.experts, values.experts) {
            (Some(Experts { routed, shared }), Some((routed_values, shared_values))) if kind.sparse => {
                routed.put(&mut block, routed_values, (normed, sublayer));
                shared.join(&mut block, shared_values, (normed, sublayer));
            }
            _ => self.mlp.put(&mut block, "mlp", values.mlp, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        block
    }
}

/// The drafting head: a layer of its own behind the trunk that predicts the token after the next from the trunk's
/// outcome and the next token's embedding (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).
struct DraftingHead {
    layers: usize,
    /// The embedding it uses.
    embedding: &'static str,
    /// What the head reads: the trunk's outcome after its norm, then its own.
    outcome: ValueId,
    carried: ValueId,
    embedded: ValueId,
    both: ValueId,
}

impl DraftingHead {
    /// The head, if the checkpoint has one.
    fn find(source: &Source<'_>, model: &Hybrid, builder: &mut ProgramBuilder) -> Result<Option<Self>, ArchError> {
        if (source.tensor)("mtp.fc.weight").is_none() {
            return Ok(None);
        }
        let hidden = model.ends.hidden;
        let own = (source.tensor)("mtp.embed_tokens.weight").is_some();
        Ok(Some(Self {
            layers: source.config.usize_or("mtp_num_hidden_layers", 1)?.clamp(1, 64),
            embedding: if own { "mtp.embed_tokens" } else { "model.embed_tokens" },
            outcome: builder.tokens("outcome", hidden),
            carried: builder.tokens("carried", hidden),
            embedded: builder.tokens("embedded", hidden),
            both: builder.tokens("embedded_and_carried", 2 * hidden),
        }))
    }

    /// The trunk's end: as without a head, but that the outcome of every token is kept.
    fn trunk_end(&self, model: &Hybrid, head: &str, stream: Stream) -> BlockBuilder {
        self.end("epilogue", "model.norm", model, head, stream)
    }

    fn end(&self, kind: &'static str, norm: &str, model: &Hybrid, head: &str, stream: Stream) -> BlockBuilder {
        let mut block = BlockBuilder::new(kind);
        model.norm.put(&mut block, norm, "norm", model.ends.hidden, (stream.x, self.outcome));
        block.op(SelectRows, &[self.outcome], &[stream.last], &[]);
        let head = block.weight("lm_head", head, &[model.ends.vocab, model.ends.hidden], Some(0));
        block.op(Linear { bias: false }, &[stream.last], &[stream.logits], &[head]);
        block
    }

    fn place(&self, model: &Hybrid, head: &str, values: Values, builder: &mut ProgramBuilder) {
        let (hidden, Stream { x, .. }) = (model.ends.hidden, values.stream);
        let mut block = BlockBuilder::new("draft.prologue");
        let shape = [model.ends.vocab, hidden];
        let table = block.weight("embed", &format!("{}.weight", self.embedding), &shape, Some(0));
        block.op(Embed::scaled(1.0), &[], &[self.embedded], &[table]);
        block.op(Carry, &[self.outcome], &[self.carried], &[]);
        for (name, value) in [("embedding", self.embedded), ("hidden", self.carried)] {
            let module = format!("mtp.pre_fc_norm_{name}");
            model.norm.put(&mut block, &module, "norm", hidden, (value, value));
        }
        block.op(Concat, &[self.embedded, self.carried], &[self.both], &[]);
        block.linear("fc", "mtp.fc", Map::columns(hidden, 2 * hidden), self.both, x);
        let prologue = builder.add(block);
        let layer = builder.add(model.layer(
            "mtp.layers.{layer}.",
            values,
            Kind { full: true, sparse: model.experts.is_some() },
        ));
        let epilogue = builder.add(self.end("draft.epilogue", "mtp.norm", model, head, values.stream));
        builder.place_in("draft", prologue, None);
        (0..self.layers).for_each(|i| builder.place_in("draft", layer, Some(i)));
        builder.place_in("draft", epilogue, None);
    }
}

fn gated_attention(source: &Source<'_>, hidden: usize, norm: Norm) -> Result<GatedAttention, ArchError> {
    let config = source.config;
    let heads = config.positive("num_attention_heads")?;
    let head_dim = config.usize_or("head_dim", 256)?.max(1);
    let kv_heads = config.positive("num_key_value_heads")?;
    divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
    let shape = AttentionShape { hidden, heads, kv_heads, head_dim };
    let bias = config.bool_or("attention_bias", false)?;
    Ok(GatedAttention { shape, bias, norm, rope: partial_rope(source, head_dim, 0.25)? })
}

/// The rotation of the first part of each head: `partial_rotary_factor`, where it is kept, or `default`.
pub(super) fn partial_rope(source: &Source<'_>, head_dim: usize, default: f64) -> Result<RopeTable, ArchError> {
    let config = source.config;
    let within = config.opt_object("rope_parameters")?;
    let given = match &within {
        Some(parameters) => parameters.opt_f64("partial_rotary_factor")?,
        None => None,
    };
    let factor = given.map_or_else(|| config.f64_or("partial_rotary_factor", default), Ok)?;
    let rotary = (head_dim as f64 * factor) as usize;
    if rotary == 0 || rotary > head_dim {
        let why = format!("{factor} of a head of {head_dim} cannot be rotated");
        return Err(ArchError::Value { key: "partial_rotary_factor".into(), why });
    }
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    table(source, "full_attention", rotary, &old)
}

fn delta_net(source: &Source<'_>, hidden: usize, eps: f32, fused_by_head: bool) -> Result<DeltaNet, ArchError> {
    let config = source.config;
    let (key_heads, value_heads) =
        (config.positive("linear_num_key_heads")?, config.positive("linear_num_value_heads")?);
    divides("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)?;
    let rule = GatedDelta {
        key_heads,
        value_heads,
        key_dim: config.positive("linear_key_head_dim")?,
        value_dim: config.positive("linear_value_head_dim")?,
        by_channel: false,
        order: if source.storage.delta_heads_tiled { HeadOrder::Tiled } else { HeadOrder::Grouped },
        a_is_rate: source.storage.decay_as_rate,
    };
    let kernel = config.usize_or("linear_conv_kernel_dim", 4)?.max(1);
    let channels = 2 * key_heads * rule.key_dim + value_heads * rule.value_dim;
    let activation = config.opt_str("hidden_act")?.unwrap_or("silu");
    Ok(DeltaNet {
        hidden,
        rule,
        kernel,
        conv_stored: conv_shape(source, "linear_attn.conv1d.weight", channels, kernel),
        eps,
        activation: known_activation("hidden_act", activation)?,
        fused_by_head,
    })
}

/// Shape in which a depthwise convolution is stored: with an axis of 1 between, unless the file has it without.
pub(super) fn conv_shape(source: &Source<'_>, module: &str, channels: usize, kernel: usize) -> Vec<usize> {
    let layers = source.config.usize_or("num_hidden_layers", 0).unwrap_or(0);
    let names = (0..layers.min(10_000)).map(|i| format!("model.layers.{i}.{module}"));
    let found = names.into_iter().find(|name| (source.tensor)(name).is_some()).unwrap_or_default();
    conv_shape_at(source, &found, channels, kernel)
}

/// The same of a tensor by its full name.
pub(super) fn conv_shape_at(source: &Source<'_>, name: &str, channels: usize, kernel: usize) -> Vec<usize> {
    match (source.tensor)(name).is_some_and(|tensor| tensor.shape().len() == 2) {
        true => vec![channels, kernel],
        false => vec![channels, 1, kernel],
    }
}

/// That one key is a multiple of another.
pub(super) fn divides(key: &str, value: usize, of: &str, divisor: usize) -> Result<(), ArchError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ArchError::Value { key: key.into(), why: format!("{value} is no multiple of {of} = {divisor}") })
}
