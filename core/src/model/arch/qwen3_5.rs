//! qwen3_5: gated delta nets with a map each for q, k, v together, for z, for b and for a; gated attention; an MLP.
//!
//! Reference: transformers `models/qwen3_5/modeling_qwen3_5.py`. The text part of vision checkpoints is the same model.

use super::hybrid::Hybrid;
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3_5", model_types: &["qwen3_5", "qwen3_5_text"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    Hybrid::from_config("qwen3_5", source, false)?.program(source)
}
