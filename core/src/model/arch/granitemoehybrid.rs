//! granitemoehybrid: Mamba-2 mixers among a few layers of attention, routed experts beside an MLP for every token, and
//! granite's factors.
//!
//! Reference: transformers `models/granitemoehybrid/modeling_granitemoehybrid.py`. A file may have no experts; attention
//! rotates only if `position_embedding_type` is `rope`.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes, Stored};
use super::dense::{Dense, LAYER};
use super::mamba::{expanded, mixer};
use super::parts::kinds::kinds;
use super::parts::mamba::{Mixer, MixerValues, OutputNorm};
use super::parts::moe::{ExpertTensors, Moe, MoeValues};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::ops::add::Add;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::MoeRoute;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;
use crate::model::program::{Program, ValueId};

/// The family.
pub const FAMILY: Family = Family { name: "granitemoehybrid", model_types: &["granitemoehybrid"], program };

struct Granite {
    ends: Ends,
    norm: Norm,
    attention: AttentionShape,
    bias: bool,
    rope: Option<RopeTable>,
    pairs: RopePairs,
    scale: f32,
    residual: f32,
    mixer: Mixer,
    shared: Mlp,
    moe: Option<Moe>,
}

#[derive(Clone, Copy)]
struct Values {
    stream: Stream,
    attention: AttentionValues,
    mixer: MixerValues,
    mlp: MlpValues,
    moe: Option<(MoeValues, ValueId)>,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let dense = Dense::from_config("granitemoehybrid", source)?;
    let layers = dense.layers.len();
    let names = ["linear_attention", "full_attention", "mamba", "attention"];
    let key = if config.has("layer_types") { "layer_types" } else { "layers_block_type" };
    let found = kinds(source, key, &names, layers, |_| 0)?;
    let model = Granite::new(source, &dense)?;
    let mut builder = ProgramBuilder::new("granitemoehybrid");
    let values = Values {
        stream: model.ends.values(&mut builder),
        attention: model.attention.values(&mut builder),
        mixer: model.mixer.values(&mut builder),
        mlp: MlpValues::new(&mut builder, model.shared.intermediate),
        moe: model.moe.as_ref().map(|moe| (moe.values(&mut builder), builder.tokens("routed", dense.hidden))),
    };
    let stream = values.stream;
    let embed_scale = config.f64_or("embedding_multiplier", 1.0)? as f32;
    let factor = (1.0 / config.f64_or("logits_scaling", 1.0)?) as f32;
    let prologue = builder.add(model.ends.embed("model.embed_tokens", embed_scale, stream));
    let mut epilogue = model.ends.head(model.norm, "model.norm", head_name(source.tied_head()?), stream);
    epilogue.op(Scale { factor }, &[stream.logits], &[stream.logits], &[]);
    let epilogue = builder.add(epilogue);
    let full: Vec<bool> = found.into_iter().map(|kind| kind % 2 == 1).collect();
    let blocks = [false, true].map(|kind| full.contains(&kind).then(|| builder.add(model.layer(values, kind))));
    builder.place(prologue, None);
    for (layer, kind) in full.iter().enumerate() {
        if let Some(block) = blocks[usize::from(*kind)] {
            builder.place(block, Some(layer));
        }
    }
    builder.place(epilogue, None);
    let sizes = Sizes { vocab: dense.vocab, hidden: dense.hidden, layers, max_context: dense.max_context };
    builder.finish(&sizes, stream.logits)
}

impl Granite {
    fn new(source: &Source<'_>, dense: &Dense) -> Result<Self, ArchError> {
        let config = source.config;
        let Dense { hidden, heads, kv_heads, head_dim, activation, .. } = *dense;
        let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
        let rotates = config.opt_str("position_embedding_type")? == Some("rope");
        let intermediate = config.usize_or("shared_intermediate_size", 1024)?.max(1);
        Ok(Self {
            ends: Ends { hidden, vocab: dense.vocab },
            norm: Norm::Rms { eps: dense.eps, offset: 0.0 },
            attention: AttentionShape { hidden, heads, kv_heads, head_dim },
            bias: dense.qkv_bias,
            rope: if rotates { Some(table(source, "full_attention", head_dim, &old)?) } else { None },
            pairs: dense.pairs,
            scale: config.f64_or("attention_multiplier", 1.0)? as f32,
            residual: config.f64_or("residual_multiplier", 1.0)? as f32,
            mixer: mixer(source, expanded(source)?, OutputNorm::GateFirst)?,
            shared: Mlp { hidden, intermediate, activation, bias: false },
            moe: experts(source, dense)?,
        })
    }

    fn layer(&self, values: Values, full: bool) -> BlockBuilder {
        let Stream { x, normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        let mut block = BlockBuilder::under(if full { "layer.full" } else { "layer.mamba" }, LAYER);
        self.norm.put(&mut block, "input_layernorm", "input_norm", hidden, (x, normed));
        match full {
            true => self.attend(&mut block, values),
            false => self.mixer.put(&mut block, "mamba", values.mixer, (normed, sublayer)),
        }
        stream::join(&mut block, self.residual, values.stream);
        self.norm.put(&mut block, "post_attention_layernorm", "post_norm", hidden, (x, normed));
        self.shared(&mut block, values.mlp, (normed, sublayer));
        if let (Some(moe), Some((moe_values, routed))) = (&self.moe, values.moe) {
            moe.put(&mut block, moe_values, (normed, routed));
            block.op(Add::SUM, &[sublayer, routed], &[sublayer], &[]);
        }
        stream::join(&mut block, self.residual, values.stream);
        block
    }

    fn attend(&self, block: &mut BlockBuilder, values: Values) {
        let (shape, inner, Stream { normed, sublayer, .. }) = (self.attention, values.attention, values.stream);
        shape.project(block, "self_attn", self.bias, normed, inner);
        if let Some(rope) = &self.rope {
            shape.rotate(block, rope, self.pairs, inner);
        }
        shape.attend(block, Attend::full(self.scale), inner);
        shape.gather(block, "self_attn.o_proj", self.bias, inner, sublayer);
    }

    /// The MLP every token goes through: gate and up are one stored map.
    fn shared(&self, block: &mut BlockBuilder, values: MlpValues, (from, to): (ValueId, ValueId)) {
        let Mlp { hidden, intermediate, .. } = self.shared;
        for (role, out, first) in [("gate_proj", values.gate, 0), ("up_proj", values.up, intermediate)] {
            let stored = Stored { outputs: 2 * intermediate, first, transposed: false };
            let map = Map::columns(intermediate, hidden).stored(stored);
            block.linear(role, "shared_mlp.input_linear", map, from, out);
        }
        self.shared.act_and_down(block, "shared_mlp.output_linear", values, to);
    }
}

fn experts(source: &Source<'_>, dense: &Dense) -> Result<Option<Moe>, ArchError> {
    let config = source.config;
    let (experts, top_k) = (config.usize_or("num_local_experts", 8)?, config.usize_or("num_experts_per_tok", 2)?);
    if experts == 0 {
        return Ok(None);
    }
    if top_k == 0 || top_k > experts {
        let why = format!("{top_k} of {experts} experts");
        return Err(ArchError::Value { key: "num_experts_per_tok".into(), why });
    }
    Ok(Some(Moe {
        hidden: dense.hidden,
        // A softmax over the chosen is one over all, divided by the sum of the chosen.
        route: MoeRoute::softmax(top_k, true),
        experts: MoeExperts {
            experts,
            top_k,
            intermediate: dense.intermediate,
            maps: ExpertMaps::Fused,
            act: ExpertAct::Plain(dense.activation),
            biased: false,
            on_input: false,
        },
        tensors: ExpertTensors::Stacked {
            gate_up: "block_sparse_moe.input_linear.weight",
            down: "block_sparse_moe.output_linear.weight",
            transposed: false,
        },
        router: "block_sparse_moe.router.layer",
        router_bias: false,
        choice_bias: None,
    }))
}
