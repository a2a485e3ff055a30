//! cohere2: one layer norm without bias before attention and MLP, which run beside each other; rotary positions, in
//! neighbouring pairs, on window layers only; a factor on logits.
//!
//! Reference: transformers `models/cohere2/modeling_cohere2.py`; Cohere 2025, arXiv:2504.00698.

use super::builder::{BlockBuilder, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER};
use super::parts::stream::{Ends, head_name};
use super::parts::{Attend, AttentionShape, Mlp, MlpValues, Norm};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::rope::RopePairs;
use crate::model::program::ops::scale::Scale;

/// The family.
pub const FAMILY: Family = Family { name: "cohere2", model_types: &["cohere2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("cohere2", source)?;
    let norm = Norm::Layer { eps: config.f64_or("layer_norm_eps", 1e-5)? as f32, bias: false };
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    let pattern = config.usize_or("sliding_window_pattern", 4)?.max(1);
    dense.window_layers(source, (None, Some(rope)), |i| (i + 1) % pattern != 0)?;

    let Dense { hidden, intermediate, heads, kv_heads, head_dim, activation, vocab, max_context, .. } = dense;
    let shape = AttentionShape { hidden, heads, kv_heads, head_dim };
    let mlp = Mlp { hidden, intermediate, activation, bias: false };
    let mut builder = ProgramBuilder::new("cohere2");
    let ends = Ends { hidden, vocab };
    let (stream, values) = (ends.values(&mut builder), shape.values(&mut builder));
    let (hidden_units, beside) = (MlpValues::new(&mut builder, intermediate), builder.tokens("mlp", hidden));
    let prologue = builder.add(ends.embed("model.embed_tokens", 1.0, stream));
    let mut layers = Vec::new();
    for kind in &dense.kinds {
        let mut block = BlockBuilder::under(kind.name, LAYER);
        norm.put(&mut block, "input_layernorm", "input_layernorm", hidden, (stream.x, stream.normed));
        shape.project(&mut block, "self_attn", dense.qkv_bias, stream.normed, values);
        if let Some(table) = &kind.rope {
            shape.rotate(&mut block, table, RopePairs::Interleaved, values);
        }
        let how = Attend::full(shape.usual_scale()).window(kind.window);
        shape.attend(&mut block, how, values);
        shape.gather(&mut block, "self_attn.o_proj", dense.o_bias, values, stream.sublayer);
        mlp.put(&mut block, "mlp", hidden_units, (stream.normed, beside));
        for value in [stream.sublayer, beside] {
            block.op(Add::SUM, &[stream.x, value], &[stream.x], &[]);
        }
        layers.push(builder.add(block));
    }
    let mut epilogue = ends.head(norm, "model.norm", head_name(source.tied_head()?), stream);
    let factor = config.f64_or("logit_scale", 0.0625)? as f32;
    epilogue.op(Scale { factor }, &[stream.logits], &[stream.logits], &[]);
    let epilogue = builder.add(epilogue);
    builder.place(prologue, None);
    dense.layers.iter().enumerate().for_each(|(layer, kind)| builder.place(layers[*kind], Some(layer)));
    builder.place(epilogue, None);
    builder.finish(&Sizes { vocab, hidden, layers: dense.layers.len(), max_context }, stream.logits)
}
