//! gpt2: learned positions, layer norms with bias before the sublayers, an MLP without a gate, maps stored `[in, out]`.
//!
//! Reference: transformers `models/gpt2/modeling_gpt2.py`; Radford et al. 2019, "Language models are unsupervised multitask
//! learners". Hub files name tensors with or without `transformer.` in front.

use super::builder::{BlockBuilder, Map, ProgramBuilder, Sizes, Stored};
use super::dense::known_activation;
use super::parts::stream::{self, Ends};
use super::parts::{Attend, AttentionShape, Norm};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::act::Act;
use crate::model::program::ops::add_positions::AddPositions;

/// The family.
pub const FAMILY: Family = Family { name: "gpt2", model_types: &["gpt2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let (hidden, heads, layers) = (config.positive("n_embd")?, config.positive("n_head")?, config.positive("n_layer")?);
    let (vocab, positions) = (config.positive("vocab_size")?, config.positive("n_positions")?);
    let wrong = |key: &str, why: &str| ArchError::Value { key: key.into(), why: why.into() };
    if hidden % heads != 0 {
        return Err(wrong("n_embd", "it is no multiple of n_head"));
    }
    for (key, usual) in [("scale_attn_weights", true), ("scale_attn_by_inverse_layer_idx", false)] {
        if config.bool_or(key, usual)? != usual {
            return Err(wrong(key, "only the usual scale of attention scores is supported"));
        }
    }
    let intermediate = config.usize_or("n_inner", 4 * hidden)?;
    let activation =
        known_activation("activation_function", config.opt_str("activation_function")?.unwrap_or("gelu_new"))?;
    let norm = Norm::Layer { eps: config.f64_or("layer_norm_epsilon", 1e-5)? as f32, bias: true };
    let shape = AttentionShape { hidden, heads, kv_heads: heads, head_dim: hidden / heads };
    let wrapped = (source.tensor)("transformer.wte.weight").is_some();
    let (prefix, under) = if wrapped { ("transformer.", "transformer.h.{layer}.") } else { ("", "h.{layer}.") };

    let mut builder = ProgramBuilder::new("gpt2");
    // Causal masks that old files keep as tensors.
    builder.skip("*.attn.bias");
    builder.skip("*.attn.masked_bias");
    let ends = Ends { hidden, vocab };
    let (stream, values) = (ends.values(&mut builder), shape.values(&mut builder));
    let units = builder.tokens("hidden_units", intermediate);
    let stored = |outputs| Stored { outputs, first: 0, transposed: true };

    let mut prologue = ends.embed(&format!("{prefix}wte"), 1.0, stream);
    let table = prologue.weight("positions", &format!("{prefix}wpe.weight"), &[positions, hidden], None);
    prologue.op(AddPositions, &[stream.x], &[stream.x], &[table]);
    let prologue = builder.add(prologue);

    let mut block = BlockBuilder::under("layer", under);
    norm.put(&mut block, "ln_1", "ln_1", hidden, (stream.x, stream.normed));
    shape.project_fused(&mut block, "attn.c_attn", (true, true), stream.normed, values);
    shape.attend(&mut block, Attend::full(shape.usual_scale()), values);
    let map = Map::gather(hidden, hidden).with_bias(true).stored(stored(hidden));
    block.linear("o_proj", "attn.c_proj", map, values.attended, stream.sublayer);
    stream::join(&mut block, 1.0, stream);
    norm.put(&mut block, "ln_2", "ln_2", hidden, (stream.x, stream.normed));
    let map = Map::columns(intermediate, hidden).with_bias(true).stored(stored(intermediate));
    block.linear("up_proj", "mlp.c_fc", map, stream.normed, units);
    block.op(Act { activation }, &[units], &[units], &[]);
    let map = Map::gather(hidden, intermediate).with_bias(true).stored(stored(hidden));
    block.linear("down_proj", "mlp.c_proj", map, units, stream.sublayer);
    stream::join(&mut block, 1.0, stream);
    let layer = builder.add(block);

    let head = if source.tied_head()? { format!("{prefix}wte.weight") } else { "lm_head.weight".into() };
    let epilogue = builder.add(ends.head(norm, &format!("{prefix}ln_f"), &head, stream));
    builder.place(prologue, None);
    (0..layers).for_each(|i| builder.place(layer, Some(i)));
    builder.place(epilogue, None);
    builder.finish(&Sizes { vocab, hidden, layers, max_context: positions }, stream.logits)
}
