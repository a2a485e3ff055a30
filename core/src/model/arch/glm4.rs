//! glm4: norms at both ends of each sublayer, rotary positions in neighbouring pairs on the first half of a head, biases on
//! query, key and value by option, gate and up stored as one map.
//!
//! Reference: transformers `models/glm4/modeling_glm4.py`; GLM team 2024, arXiv:2406.12793.

use super::dense::{Dense, LayerKind, NormNames};
use super::rope::{OldKeys, rotary_dim, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::rope::RopePairs;

/// The family.
pub const FAMILY: Family = Family { name: "glm4", model_types: &["glm4"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("glm4", source)?;
    dense.o_bias = false;
    dense.fused_gate_up = true;
    dense.pairs = RopePairs::Interleaved;
    dense.norms = NormNames {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_self_attn_layernorm"),
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
    };
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let turning = rotary_dim(source, "full_attention", dense.head_dim, 0.5)?;
    let rope = Some(table(source, "full_attention", turning, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    dense.program(source)
}
