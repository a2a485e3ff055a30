//! deepseek2: deepseek_v3, its map from latents to keys (transposed) and that to values apart.

use super::{Arch, Source};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch = Arch {
    name: "deepseek2",
    model_type: "deepseek_v3",
    rope_interleaved_qk: true,
    names: NAMES,
    extend,
    gather: super::as_stored,
};

const NAMES: &[(&str, &str)] = &[
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
];

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    // Without them values and keys have the sizes that attention has when it looks at latents.
    let key = source.u64("attention.key_length_mla").or(source.u64("attention.key_length"));
    let (turned, value) = (source.u64("rope.dimension_count"), source.value("attention.value_length_mla"));
    config.remove("partial_rotary_factor");
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    set("qk_rope_head_dim", turned.map(Value::from));
    set("qk_nope_head_dim", key.zip(turned).map(|(key, turned)| key.saturating_sub(turned).into()));
    set("v_head_dim", value.or(source.value("attention.value_length")));
    set("q_lora_rank", source.value("attention.q_lora_rank"));
    set("kv_lora_rank", source.value("attention.kv_lora_rank"));
    set("n_routed_experts", source.value("expert_count"));
    set("num_experts_per_tok", source.value("expert_used_count"));
    set("n_shared_experts", source.value("expert_shared_count"));
    set("moe_intermediate_size", source.value("expert_feed_forward_length"));
    set("first_k_dense_replace", source.value("leading_dense_block_count"));
    set("n_group", source.value("expert_group_count"));
    set("topk_group", source.value("expert_group_used_count"));
    set("norm_topk_prob", source.value("expert_weights_norm"));
    set("routed_scaling_factor", source.value("expert_weights_scale"));
}
