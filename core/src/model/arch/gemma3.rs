//! gemma3: window and full layers with a rotary base each, norms before and after every sublayer, norms on query and
//! key heads, embeddings scaled by sqrt(hidden), GELU.
//!
//! Reference: transformers `models/gemma3/modeling_gemma3.py`; Gemma team 2025, arXiv:2503.19786. Safetensors hold
//! norm weights as w and mean 1 + w; GGUF holds 1 + w: the container's storage facts say which.

use super::dense::{Dense, LayerKind, NormNames, known_activation};
use super::parts::kinds::kinds;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "gemma3", model_types: &["gemma3_text", "gemma3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("gemma3", source)?;
    dense.qk_norm = true;
    dense.norm_offset = source.storage.norm_weight_offset;
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.activation =
        known_activation("hidden_activation", config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    dense.attention_scale = config.f64_or("query_pre_attn_scalar", 256.0)?.powf(-0.5) as f32;
    dense.attention_softcap = cap(source, "attn_logit_softcapping")?;
    dense.logit_softcap = cap(source, "final_logit_softcapping")?;
    dense.norms = NormNames {
        before_attention: "input_layernorm",
        after_attention: Some("post_attention_layernorm"),
        before_mlp: "pre_feedforward_layernorm",
        after_mlp: Some("post_feedforward_layernorm"),
    };
    let full = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
    let local = OldKeys { theta: "rope_local_base_freq", default_theta: 10_000.0, scaled: false };
    let window = config.usize_or("sliding_window", 4096)?;
    dense.kinds = vec![
        LayerKind {
            name: "layer.full",
            rope: Some(table(source, "full_attention", dense.head_dim, &full)?),
            window: None,
        },
        LayerKind {
            name: "layer.window",
            rope: Some(table(source, "sliding_attention", dense.head_dim, &local)?),
            window: Some(window),
        },
    ];
    dense.layers = layer_kinds(source, dense.layers.len())?;
    dense.program(source)
}

fn cap(source: &Source<'_>, key: &str) -> Result<Option<f32>, ArchError> {
    Ok(Some(source.config.f64_or(key, 0.0)? as f32).filter(|cap| *cap > 0.0))
}

/// Kind of each layer: from `layer_types`, else every `sliding_window_pattern`-th layer is full.
fn layer_kinds(source: &Source<'_>, layers: usize) -> Result<Vec<usize>, ArchError> {
    let config = source.config;
    let default = config.usize_or("_sliding_window_pattern", 6)?;
    let pattern = config.usize_or("sliding_window_pattern", default)?.max(1);
    kinds(source, "layer_types", &["full_attention", "sliding_attention"], layers, |i| {
        usize::from((i + 1) % pattern != 0)
    })
}
