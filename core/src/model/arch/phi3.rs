//! phi3: llama with q, k, v and gate, up stored as one map each, a window by option, and rotary positions on part of a head
//! by option, whose angles differ in long sequences (longrope).
//!
//! Reference: transformers `models/phi3/modeling_phi3.py`; Microsoft 2024, arXiv:2404.14219.

use super::dense::{Dense, LayerKind};
use super::rope::{OldKeys, rotary_dim, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "phi3", model_types: &["phi3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("phi3", source)?;
    (dense.fused_qkv, dense.fused_gate_up) = (true, true);
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let turning = rotary_dim(source, "full_attention", dense.head_dim, 1.0)?;
    let rope = Some(table(source, "full_attention", turning, &old)?);
    let window = source.config.opt_usize("sliding_window")?;
    dense.kinds = vec![LayerKind { name: "layer", rope, window, experts: false }];
    dense.program(source)
}
