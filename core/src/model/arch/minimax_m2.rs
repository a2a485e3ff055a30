//! minimax_m2: a norm on whole query and key projections, rotary positions on part of a head, routed experts in every layer
//! chosen by sigmoid and a bias.
//!
//! Reference: transformers `models/minimax_m2/modeling_minimax_m2.py`; MiniMax 2025.

use super::dense::{Dense, LayerKind, NormOver};
use super::mixtral::W_NAMES;
use super::parts::moe::{Moe, expert_counts};
use super::rope::{OldKeys, rotary_dim, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_route::{MoeRoute, Score};

/// The family.
pub const FAMILY: Family = Family { name: "minimax_m2", model_types: &["minimax_m2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("minimax_m2", source)?;
    dense.qk_norm = Some(NormOver::All);
    let old = OldKeys { theta: "rope_theta", default_theta: 5_000_000.0, scaled: true };
    let share = config.usize_or("rotary_dim", dense.head_dim)? as f64 / dense.head_dim as f64;
    let turning = rotary_dim(source, "full_attention", dense.head_dim, share)?;
    let rope = Some(table(source, "full_attention", turning, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    let (experts, top_k) = expert_counts(config, "num_local_experts", ("num_experts_per_tok", 8))?;
    let sizes = (dense.hidden, dense.intermediate, dense.activation);
    let route = MoeRoute { score: Score::Sigmoid, biased: true, ..MoeRoute::softmax(top_k, true) };
    let moe = Moe::of_mlps(sizes, experts, route, ("block_sparse_moe.experts", W_NAMES), "block_sparse_moe.gate");
    let moe = Moe { choice_bias: Some(("block_sparse_moe.e_score_correction_bias", false)), ..moe };
    dense.with_experts(moe, None, |_| true);
    // Drafting layers stand behind the model's own.
    dense.skips.push(format!("model.layers.{}.", dense.layers.len()));
    dense.program(source)
}
