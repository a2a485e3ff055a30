//! qwen2: llama with biases on query, key and value; the last layers may use a window.
//!
//! Reference: transformers `models/qwen2/modeling_qwen2.py`; Qwen team 2024, arXiv:2407.10671.

use super::dense::Dense;
use super::qwen3::late_windows;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen2", model_types: &["qwen2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("qwen2", source)?;
    dense.qkv_bias = true;
    dense.o_bias = false;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    late_windows(&mut dense, source, rope)?;
    dense.program(source)
}
