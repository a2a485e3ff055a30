//! hunyuan_moe: a norm on query and key heads after rotation, routed experts and a shared one in every layer.
//!
//! Reference: transformers `models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py`; Tencent 2025.

use super::dense::{Dense, LayerKind, NormOver};
use super::parts::Mlp;
use super::parts::moe::{GATE_UP_DOWN, Moe, expert_counts};
use super::parts::shared_expert::SharedExpert;
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_route::MoeRoute;

/// The family.
pub const FAMILY: Family = Family { name: "hunyuan_moe", model_types: &["hunyuan_v1_moe"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("hunyuan_moe", source)?;
    dense.qk_norm = Some(NormOver::Head);
    dense.qk_norm_names = ["query_layernorm", "key_layernorm"];
    dense.qk_norm_after_rope = true;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    let (experts, top_k) = expert_counts(config, "num_experts", ("moe_topk", 1))?;
    let (hidden, intermediate, activation) = (dense.hidden, dense.intermediate, dense.activation);
    let route = MoeRoute::softmax(top_k, true);
    let sizes = (hidden, intermediate, activation);
    let moe = Moe::of_mlps(sizes, experts, route, ("mlp.experts", GATE_UP_DOWN), "mlp.gate.wg");
    let shared = SharedExpert {
        mlp: Mlp { hidden, intermediate, activation, bias: false },
        module: "mlp.shared_mlp",
        gate: None,
    };
    dense.with_experts(moe, Some(shared), |_| true);
    dense.program(source)
}
