//! qwen3_5_moe: qwen3_5 with routed experts and a gated shared one in place of every MLP.
//!
//! Reference: transformers `models/qwen3_5_moe/modeling_qwen3_5_moe.py`. The weights of a token's experts sum to one. Files
//! hold experts stacked, gate above up, or one by one.

use super::hybrid::Hybrid;
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3_5_moe", model_types: &["qwen3_5_moe", "qwen3_5_moe_text"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    Hybrid::from_config("qwen3_5_moe", source, false)?.with_experts(source, true)?.program(source)
}
