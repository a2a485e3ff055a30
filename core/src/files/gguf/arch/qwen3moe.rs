//! qwen3moe: qwen3 with experts in every layer; their weights always sum to one.

use super::{Arch, Source};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch = Arch {
    name: "qwen3moe",
    model_type: "qwen3_moe",
    rope_interleaved_qk: false,
    names: &[("ffn_gate_inp", "mlp.gate")],
    extend,
    gather: super::as_stored,
};

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    set("num_experts", source.value("expert_count"));
    set("num_experts_per_tok", source.value("expert_used_count"));
    set("moe_intermediate_size", source.value("expert_feed_forward_length"));
    set("norm_topk_prob", Some(true.into()));
}
