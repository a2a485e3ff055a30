//! qwen2_moe: qwen2 with routed experts and a gated shared one.
//!
//! Reference: transformers `models/qwen2_moe/modeling_qwen2_moe.py`; Qwen team 2024, arXiv:2407.10671.

use super::dense::Dense;
use super::parts::Mlp;
use super::parts::shared_expert::SharedExpert;
use super::qwen3::late_windows;
use super::qwen3_moe::{experts, sparse_layers};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen2_moe", model_types: &["qwen2_moe"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("qwen2_moe", source)?;
    dense.qkv_bias = config.bool_or("qkv_bias", true)?;
    dense.o_bias = false;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    late_windows(&mut dense, source, rope)?;
    let moe = experts(source, &dense, ("num_experts_per_tok", 4))?;
    let (hidden, activation) = (dense.hidden, dense.activation);
    let intermediate = config.positive("shared_expert_intermediate_size")?;
    let shared = SharedExpert {
        mlp: Mlp { hidden, intermediate, activation, bias: false },
        module: "mlp.shared_expert",
        gate: Some("mlp.shared_expert_gate"),
    };
    let sparse = sparse_layers(source)?;
    dense.with_experts(moe, Some(shared), sparse);
    dense.program(source)
}
