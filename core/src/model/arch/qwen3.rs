//! qwen3: llama with a norm on every query and key head; the last layers may use a window.
//!
//! Reference: transformers `models/qwen3/modeling_qwen3.py`; Qwen team 2025, arXiv:2505.09388.

use super::dense::{Dense, NormOver};
use super::rope::{OldKeys, RopeTable, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3", model_types: &["qwen3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("qwen3", source)?;
    dense.qk_norm = Some(NormOver::Head);
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    late_windows(&mut dense, source, rope)?;
    dense.program(source)
}

/// qwen's windows: off unless `use_sliding_window`, then from layer `max_window_layers` on.
pub(super) fn late_windows(dense: &mut Dense, source: &Source<'_>, rope: RopeTable) -> Result<(), ArchError> {
    let config = source.config;
    let on = config.bool_or("use_sliding_window", false)? && config.opt_usize("sliding_window")?.is_some();
    let first = config.usize_or("max_window_layers", 28)?;
    dense.window_layers(source, (Some(rope.clone()), Some(rope)), |i| on && i >= first)
}
