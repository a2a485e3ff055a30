//! llama: RMS norm, rotary positions (all scalings of [`super::rope`]), grouped-query attention, SwiGLU.
//!
//! Reference: transformers `models/llama/modeling_llama.py`; Touvron et al. 2023, arXiv:2302.13971.

use super::dense::{Dense, LayerKind};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "llama", model_types: &["llama"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("llama", source)?;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    dense.kinds = vec![LayerKind { name: "layer", rope: Some(rope), window: None, experts: false }];
    dense.program(source)
}
