//! granite: llama with factors on embeddings, on what sublayers add, on attention scores, and a divisor of logits.
//!
//! Reference: transformers `models/granite/modeling_granite.py`.

use super::dense::{Dense, LayerKind};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "granite", model_types: &["granite"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("granite", source)?;
    dense.embed_scale = config.f64_or("embedding_multiplier", 1.0)? as f32;
    dense.residual_scale = config.f64_or("residual_multiplier", 1.0)? as f32;
    dense.attention_scale = config.f64_or("attention_multiplier", 1.0)? as f32;
    dense.logit_scale = (1.0 / config.f64_or("logits_scaling", 1.0)?) as f32;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    dense.program(source)
}
