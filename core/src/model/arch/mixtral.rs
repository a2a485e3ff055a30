//! mixtral: llama with routed experts in every layer, the best two of each token in published models, and a window by
//! option.
//!
//! Reference: transformers `models/mixtral/modeling_mixtral.py`; Jiang et al. 2024, arXiv:2401.04088.

use super::dense::{Dense, LayerKind};
use super::parts::moe::{Moe, expert_counts};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_route::MoeRoute;

/// The family.
pub const FAMILY: Family = Family { name: "mixtral", model_types: &["mixtral"], program };

/// gate, up and down in the names of mixtral and those after it.
pub(super) const W_NAMES: [&str; 3] = ["w1", "w3", "w2"];

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("mixtral", source)?;
    let old = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    let window = config.opt_usize("sliding_window")?;
    dense.kinds = vec![LayerKind { name: "layer", rope, window, experts: false }];
    let (experts, top_k) = expert_counts(config, "num_local_experts", ("num_experts_per_tok", 2))?;
    let sizes = (dense.hidden, dense.intermediate, dense.activation);
    let route = MoeRoute::softmax(top_k, true);
    let tensors = ("block_sparse_moe.experts", W_NAMES);
    dense.with_experts(Moe::of_mlps(sizes, experts, route, tensors, "block_sparse_moe.gate"), None, |_| true);
    dense.program(source)
}
