//! qwen3_next: gated delta nets whose maps are stored key head by key head, gated attention, routed experts and a gated
//! shared one in most layers.
//!
//! Reference: transformers `models/qwen3_next/modeling_qwen3_next.py`.

use super::hybrid::Hybrid;
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3_next", model_types: &["qwen3_next"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let normalised = source.config.bool_or("norm_topk_prob", true)?;
    Hybrid::from_config("qwen3_next", source, true)?.with_experts(source, normalised)?.program(source)
}
