//! llama4: layers with rotary positions look at chunks of the context, the others at all of it with queries that grow with
//! the position; the best expert or experts of each token read it times their score, and a shared one as it is.
//!
//! Reference: transformers `models/llama4/modeling_llama4.py`. Rotation is in neighbouring pairs; queries and keys of
//! rotated layers are then normed without a weight. Layers without experts have a wider MLP.

use super::builder::{BlockBuilder, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER};
use super::parts::kinds::{kinds, rope_layers};
use super::parts::moe::{ExpertTensors, Moe, MoeValues, expert_counts};
use super::parts::norm::weightless;
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::{MoeRoute, Score};
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale_by_position::ScaleByPosition;

/// The family.
pub const FAMILY: Family = Family { name: "llama4", model_types: &["llama4_text", "llama4"], program };

/// Layers whose description is the same share a block.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    rotated: bool,
    chunked: bool,
    experts: bool,
}

struct Model {
    shape: AttentionShape,
    norm: Norm,
    eps: f32,
    bias: bool,
    rope: RopeTable,
    chunk: Option<usize>,
    normed_heads: bool,
    growth: Option<ScaleByPosition>,
    mlp: Mlp,
    shared: Mlp,
    moe: Moe,
}

struct Values {
    stream: Stream,
    attention: AttentionValues,
    mlp: MlpValues,
    shared: MlpValues,
    moe: MoeValues,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let dense = Dense::from_config("llama4", source)?;
    let (hidden, vocab, count) = (dense.hidden, dense.vocab, dense.layers.len());
    let model = model(source, &dense)?;
    let rotated = rope_layers(source, count, 4)?;
    let chunked = kinds(source, "layer_types", &["full_attention", "chunked_attention"], count, |i| {
        usize::from(rotated[i] && model.chunk.is_some())
    })?;
    let step = config.usize_or("interleave_moe_layer_step", 1)?.max(1);
    let moe_layers = config.opt_usize_list("moe_layers")?;
    let experts = |i: usize| moe_layers.as_ref().map_or((i + 1).is_multiple_of(step), |layers| layers.contains(&i));

    let mut builder = ProgramBuilder::new("llama4");
    builder.skip_other_modalities();
    let ends = Ends { hidden, vocab };
    let values = Values {
        stream: ends.values(&mut builder),
        attention: model.shape.values(&mut builder),
        mlp: MlpValues::new(&mut builder, model.mlp.intermediate),
        shared: MlpValues::named(&mut builder, model.shared.intermediate, ["shared_gate", "shared_up"]),
        moe: model.moe.values(&mut builder),
    };
    let prologue = builder.add(ends.embed("model.embed_tokens", 1.0, values.stream));
    builder.place(prologue, None);
    let mut known: Vec<(Kind, usize)> = Vec::new();
    for layer in 0..count {
        let kind = Kind { rotated: rotated[layer], chunked: chunked[layer] == 1, experts: experts(layer) };
        let found = known.iter().find(|(other, _)| *other == kind).map(|(_, block)| *block);
        let block = found.unwrap_or_else(|| {
            let block = builder.add(model.layer(&values, kind));
            known.push((kind, block));
            block
        });
        builder.place(block, Some(layer));
    }
    let epilogue = builder.add(ends.head(model.norm, "model.norm", head_name(source.tied_head()?), values.stream));
    builder.place(epilogue, None);
    let sizes = Sizes { vocab, hidden, layers: count, max_context: dense.max_context };
    builder.finish(&sizes, values.stream.logits)
}

fn model(source: &Source<'_>, dense: &Dense) -> Result<Model, ArchError> {
    let config = source.config;
    let Dense { hidden, intermediate, heads, kv_heads, head_dim, activation, eps, .. } = *dense;
    let (experts, top_k) = expert_counts(config, "num_local_experts", ("num_experts_per_tok", 1))?;
    let old = OldKeys { theta: "rope_theta", default_theta: 500_000.0, scaled: true };
    let mlp = Mlp { hidden, intermediate: config.usize_or("intermediate_size_mlp", 16_384)?, activation, bias: false };
    let growth = ScaleByPosition {
        slope: config.f64_or("attn_scale", 0.1)? as f32,
        step: config.usize_or("floor_scale", 8192)?.max(1),
    };
    // Published files have a number here.
    let tuned = match config.get("attn_temperature_tuning") {
        Some(serde_json::Value::Number(number)) => number.as_f64() != Some(0.0),
        _ => config.bool_or("attn_temperature_tuning", true)?,
    };
    // A file that does not mention chunks means the class's default; one that says null means none.
    let chunk = match config.map().contains_key("attention_chunk_size") {
        true => config.opt_usize("attention_chunk_size")?.filter(|chunk| *chunk > 0),
        false => Some(8192),
    };
    Ok(Model {
        shape: AttentionShape { hidden, heads, kv_heads, head_dim },
        norm: Norm::Rms { eps, offset: 0.0 },
        eps,
        bias: dense.qkv_bias,
        rope: table(source, "full_attention", head_dim, &old)?,
        chunk,
        normed_heads: config.bool_or("use_qk_norm", true)?,
        growth: Some(growth).filter(|_| tuned),
        mlp,
        shared: Mlp { intermediate, ..mlp },
        moe: Moe {
            hidden,
            route: MoeRoute { score: Score::Sigmoid, ..MoeRoute::softmax(top_k, false) },
            experts: MoeExperts {
                experts,
                top_k,
                intermediate,
                maps: ExpertMaps::Fused,
                act: ExpertAct::Plain(activation),
                biased: false,
                on_input: true,
            },
            tensors: ExpertTensors::Stacked {
                gate_up: "feed_forward.experts.gate_up_proj",
                down: "feed_forward.experts.down_proj",
                transposed: true,
            },
            router: "feed_forward.router",
            router_bias: false,
            choice_bias: None,
        },
    })
}

impl Model {
    fn layer(&self, v: &Values, kind: Kind) -> BlockBuilder {
        let name = match (kind.chunked, kind.experts) {
            (true, true) => "layer.chunked.moe",
            (true, false) => "layer.chunked",
            (false, true) => "layer.full.moe",
            (false, false) => "layer.full",
        };
        let mut block = BlockBuilder::under(name, LAYER);
        let (hidden, Stream { x, normed, sublayer, .. }) = (self.shape.hidden, v.stream);
        self.norm.put(&mut block, "input_layernorm", "input_layernorm", hidden, (x, normed));
        self.attention(&mut block, v, kind);
        stream::join(&mut block, 1.0, v.stream);
        let name = "post_attention_layernorm";
        self.norm.put(&mut block, name, name, hidden, (x, normed));
        if kind.experts {
            self.moe.put(&mut block, v.moe, (normed, sublayer));
            stream::join(&mut block, 1.0, v.stream);
            self.shared.put(&mut block, "feed_forward.shared_expert", v.shared, (normed, sublayer));
        } else {
            self.mlp.put(&mut block, "feed_forward", v.mlp, (normed, sublayer));
        }
        block.op(Add::SUM, &[x, sublayer], &[x], &[]);
        block
    }

    fn attention(&self, block: &mut BlockBuilder, v: &Values, kind: Kind) {
        let (shape, values) = (self.shape, v.attention);
        shape.project(block, "self_attn", self.bias, v.stream.normed, values);
        if kind.rotated {
            shape.rotate(block, &self.rope, RopePairs::Interleaved, values);
            if self.normed_heads {
                for value in [values.q, values.k] {
                    weightless(block, self.eps, shape.head_dim, (value, value));
                }
            }
        } else if let Some(growth) = &self.growth {
            block.op(growth.clone(), &[values.q], &[values.q], &[]);
        }
        let how = Attend { chunk: self.chunk.filter(|_| kind.chunked), ..Attend::full(shape.usual_scale()) };
        shape.attend(block, how, values);
        shape.gather(block, "self_attn.o_proj", self.bias, values, v.stream.sublayer);
    }
}
