//! qwen3_moe: qwen3 with routed experts in most or all layers.
//!
//! Reference: transformers `models/qwen3_moe/modeling_qwen3_moe.py`; Qwen team 2025, arXiv:2505.09388.

use super::dense::{Dense, NormOver};
use super::parts::moe::{GATE_UP_DOWN, Moe, expert_counts};
use super::qwen3::late_windows;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_route::MoeRoute;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3_moe", model_types: &["qwen3_moe"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("qwen3_moe", source)?;
    dense.qk_norm = Some(NormOver::Head);
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    late_windows(&mut dense, source, rope)?;
    let moe = experts(source, &dense, ("num_experts_per_tok", 8))?;
    let sparse = sparse_layers(source)?;
    dense.with_experts(moe, None, sparse);
    dense.program(source)
}

/// qwen's experts: softmax over all, by option renormalised.
pub(super) fn experts(source: &Source<'_>, dense: &Dense, top_k: (&str, usize)) -> Result<Moe, ArchError> {
    let config = source.config;
    let key = if config.has("num_experts") { "num_experts" } else { "num_local_experts" };
    let (experts, top_k) = expert_counts(config, key, top_k)?;
    let sizes = (dense.hidden, config.positive("moe_intermediate_size")?, dense.activation);
    let route = MoeRoute::softmax(top_k, config.bool_or("norm_topk_prob", false)?);
    let moe = Moe::of_mlps(sizes, experts, route, ("mlp.experts", GATE_UP_DOWN), "mlp.gate");
    Ok(moe.found_in(source, dense.layers.len() - 1))
}

/// Which layers have experts: every `decoder_sparse_step`-th that is not in `mlp_only_layers`.
pub(super) fn sparse_layers(source: &Source<'_>) -> Result<impl Fn(usize) -> bool + use<>, ArchError> {
    let step = source.config.usize_or("decoder_sparse_step", 1)?;
    let dense = source.config.opt_usize_list("mlp_only_layers")?.unwrap_or_default();
    Ok(move |i: usize| step > 0 && (i + 1).is_multiple_of(step) && !dense.contains(&i))
}
