//! qwen35 and qwen35moe, text: gated delta nets among layers of gated attention. Norm weights are stored as 1 + w, but not
//! those of the delta nets; decays as rates; value heads in rounds over the key heads.

use super::{Arch, Source, Tensors, mtp};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch = Arch {
    name: "qwen35",
    model_type: "qwen3_5_text",
    rope_interleaved_qk: false,
    names: NAMES,
    extend,
    gather: gather_head,
};

pub(super) const MOE: Arch = Arch {
    name: "qwen35moe",
    model_type: "qwen3_5_moe_text",
    rope_interleaved_qk: false,
    names: NAMES,
    extend: extend_moe,
    gather: gather_head,
};

const NAMES: &[(&str, &str)] = &[
    ("attn_gate", "linear_attn.in_proj_z"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

fn gather_head(source: &Source<'_>, tensors: &mut Tensors) -> Result<(), String> {
    mtp::gather(source, tensors, true);
    shape_gates(tensors)
}

/// Gates of shared experts, which some files hold as vectors, as the matrices of one row that they are.
pub(super) fn shape_gates(tensors: &mut Tensors) -> Result<(), String> {
    for (name, gate) in tensors.iter_mut().filter(|(name, _)| name.ends_with(".mlp.shared_expert_gate.weight")) {
        if let [inputs] = gate.shape()[..] {
            *gate = gate.part(name, 0..inputs, &[1, inputs]).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    let heads = source.u64("ssm.time_step_rank");
    let value_dim = source.u64("ssm.inner_size").zip(heads).and_then(|(inner, heads)| inner.checked_div(heads));
    set("linear_num_value_heads", heads.map(Value::from));
    set("linear_value_head_dim", value_dim.map(Value::from));
    set("linear_num_key_heads", source.value("ssm.group_count"));
    set("linear_key_head_dim", source.value("ssm.state_size"));
    set("linear_conv_kernel_dim", source.value("ssm.conv_kernel"));
    set("full_attention_interval", source.value("full_attention_interval"));
    set("partial_rotary_factor", super::partial_rotary(source));
    set("mtp_num_hidden_layers", source.value("nextn_predict_layers").filter(|layers| *layers != 0));
}

pub(super) fn extend_moe(source: &Source<'_>, config: &mut Map<String, Value>) {
    extend(source, config);
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    set("num_experts", source.value("expert_count"));
    set("num_experts_per_tok", source.value("expert_used_count"));
    set("moe_intermediate_size", source.value("expert_feed_forward_length"));
    set("shared_expert_intermediate_size", source.value("expert_shared_feed_forward_length"));
}
