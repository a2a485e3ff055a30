//! glm4_moe: rotary positions on half of a head, biases and query and key norms by option, routed experts chosen by sigmoid, a
//! bias and groups, and a shared one, in all layers but the first.
//!
//! Reference: transformers `models/glm4_moe/modeling_glm4_moe.py`; GLM team 2025, arXiv:2508.06471.

use super::dense::{Dense, LayerKind, NormOver};
use super::parts::Mlp;
use super::parts::moe::{GATE_UP_DOWN, Moe, expert_counts};
use super::parts::shared_expert::SharedExpert;
use super::rope::{OldKeys, rotary_dim, table};
use super::{ArchError, Family, Source};
use crate::json::Config;
use crate::model::program::Program;
use crate::model::program::ops::moe_route::{Groups, MoeRoute, Score};

/// The family.
pub const FAMILY: Family = Family { name: "glm4_moe", model_types: &["glm4_moe"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("glm4_moe", source)?;
    dense.o_bias = false;
    dense.qk_norm = if config.bool_or("use_qk_norm", false)? { Some(NormOver::Head) } else { None };
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let turning = rotary_dim(source, "full_attention", dense.head_dim, 0.5)?;
    let rope = Some(table(source, "full_attention", turning, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    let (experts, top_k) = expert_counts(config, "n_routed_experts", ("num_experts_per_tok", 8))?;
    let intermediate = config.positive("moe_intermediate_size")?;
    let (hidden, activation) = (dense.hidden, dense.activation);
    let route = sigmoid_route(config, top_k)?;
    let moe =
        Moe::of_mlps((hidden, intermediate, activation), experts, route, ("mlp.experts", GATE_UP_DOWN), "mlp.gate");
    let moe = Moe { choice_bias: Some(("mlp.gate.e_score_correction_bias", false)), ..moe };
    let shared = SharedExpert {
        mlp: Mlp {
            hidden,
            intermediate: intermediate * config.usize_or("n_shared_experts", 1)?,
            activation,
            bias: false,
        },
        module: "mlp.shared_experts",
        gate: None,
    };
    let first = config.usize_or("first_k_dense_replace", 1)?;
    dense.with_experts(moe, Some(shared).filter(|shared| shared.mlp.intermediate > 0), |i| i >= first);
    // Drafting layers stand behind the model's own.
    dense.skips.push(format!("model.layers.{}.", dense.layers.len()));
    dense.program(source)
}

/// The choice of deepseek_v3 and those after it: sigmoid, a bias, groups.
pub(super) fn sigmoid_route(config: &Config, top_k: usize) -> Result<MoeRoute, ArchError> {
    let count = config.usize_or("n_group", 1)?.max(1);
    let kept = config.usize_or("topk_group", 1)?.max(1);
    Ok(MoeRoute {
        score: Score::Sigmoid,
        groups: Some(Groups { count, kept }).filter(|groups| groups.count > 1),
        factor: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        biased: true,
        ..MoeRoute::softmax(top_k, config.bool_or("norm_topk_prob", true)?)
    })
}
