//! gemma3: window and full layers with a rotary base each, norms before and after every sublayer, norms on query and
//! key heads, embeddings scaled by sqrt(hidden), GELU.
//!
//! Reference: transformers `models/gemma3/modeling_gemma3.py`; Gemma team 2025, arXiv:2503.19786. Safetensors hold
//! norm weights as w and mean 1 + w; GGUF holds 1 + w: the container's storage facts say which.

use super::dense::{Dense, NormOver, SANDWICH_NORMS, known_activation};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "gemma3", model_types: &["gemma3_text", "gemma3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("gemma3", source)?;
    dense.qk_norm = Some(NormOver::Head);
    dense.norm_offset = source.storage.norm_weight_offset;
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.activation =
        known_activation("hidden_activation", config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    dense.attention_scale = config.f64_or("query_pre_attn_scalar", 256.0)?.powf(-0.5) as f32;
    dense.attention_softcap = cap(source, "attn_logit_softcapping", 0.0)?;
    dense.logit_softcap = cap(source, "final_logit_softcapping", 0.0)?;
    dense.norms = SANDWICH_NORMS;
    let full = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
    let local = OldKeys { theta: "rope_local_base_freq", default_theta: 10_000.0, scaled: false };
    let ropes = (
        Some(table(source, "full_attention", dense.head_dim, &full)?),
        Some(table(source, "sliding_attention", dense.head_dim, &local)?),
    );
    let default = config.usize_or("_sliding_window_pattern", 6)?;
    let pattern = config.usize_or("sliding_window_pattern", default)?.max(1);
    dense.window_layers(source, ropes, |i| (i + 1) % pattern != 0)?;
    dense.program(source)
}

/// A cap, which null or 0 switches off; a config that does not mention it means `default`.
pub(super) fn cap(source: &Source<'_>, key: &str, default: f64) -> Result<Option<f32>, ArchError> {
    let given = match source.config.map().contains_key(key) {
        true => source.config.opt_f64(key)?,
        false => Some(default),
    };
    Ok(given.map(|cap| cap as f32).filter(|cap| *cap > 0.0))
}
