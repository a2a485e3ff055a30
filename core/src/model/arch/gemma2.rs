//! gemma2: window and full layers in turn, norms before and after every sublayer, caps on attention scores and logits,
//! embeddings scaled by sqrt(hidden), GELU.
//!
//! Reference: transformers `models/gemma2/modeling_gemma2.py`; Gemma team 2024, arXiv:2408.00118. Norm weights as gemma3's.

use super::dense::{Dense, SANDWICH_NORMS, known_activation};
use super::gemma3::cap;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "gemma2", model_types: &["gemma2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("gemma2", source)?;
    dense.norm_offset = source.storage.norm_weight_offset;
    dense.embed_scale = (dense.hidden as f32).sqrt();
    dense.activation =
        known_activation("hidden_activation", config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    dense.attention_scale = config.f64_or("query_pre_attn_scalar", 256.0)?.powf(-0.5) as f32;
    dense.attention_softcap = cap(source, "attn_logit_softcapping", 50.0)?;
    dense.logit_softcap = cap(source, "final_logit_softcapping", 30.0)?;
    dense.norms = SANDWICH_NORMS;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.window_layers(source, (rope.clone(), rope), |i| i % 2 == 0)?;
    dense.program(source)
}
