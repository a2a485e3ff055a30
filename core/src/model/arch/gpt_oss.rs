//! gpt_oss: attention with sinks, windows on every other layer, biases everywhere, routed experts with a clamped gate.
//!
//! Reference: transformers `models/gpt_oss/modeling_gpt_oss.py`; OpenAI 2025, arXiv:2508.10925. Experts are stacked
//! `[experts, in, out]`, gate and up in turn.

use super::dense::Dense;
use super::parts::moe::{ExpertTensors, Moe, expert_counts};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::MoeRoute;

/// The family.
pub const FAMILY: Family = Family { name: "gpt_oss", model_types: &["gpt_oss"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("gpt_oss", source)?;
    let bias = config.bool_or("attention_bias", true)?;
    (dense.qkv_bias, dense.o_bias) = (bias, bias);
    dense.sinks = Some("self_attn.sinks");
    let old = OldKeys { theta: "rope_theta", default_theta: 150_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.window_layers(source, (rope.clone(), rope), |i| i % 2 == 0)?;
    let (experts, top_k) = expert_counts(config, "num_local_experts", ("num_experts_per_tok", 4))?;
    let act = ExpertAct::ClampedPlusOne {
        alpha: config.f64_or("swiglu_alpha", 1.702)? as f32,
        limit: config.f64_or("swiglu_limit", 7.0)? as f32,
    };
    let moe = Moe {
        hidden: dense.hidden,
        // Softmax over the chosen logits is the renormalised softmax over all.
        route: MoeRoute::softmax(top_k, true),
        experts: MoeExperts {
            experts,
            top_k,
            intermediate: dense.intermediate,
            maps: ExpertMaps::Interleaved,
            act,
            biased: true,
            on_input: false,
        },
        tensors: ExpertTensors::Stacked {
            gate_up: "mlp.experts.gate_up_proj",
            down: "mlp.experts.down_proj",
            transposed: true,
        },
        router: "mlp.router",
        router_bias: true,
        choice_bias: None,
    };
    let moe = moe.found_in(source, dense.layers.len() - 1);
    dense.with_experts(moe, None, |_| true);
    dense.program(source)
}
