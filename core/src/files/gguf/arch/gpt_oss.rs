//! gpt-oss: biases everywhere, sinks, windows on every other layer. `post_attention_norm` is the norm before the experts.
//!
//! The files do not say that yarn's bounds are not rounded; the models' own are not (transformers `models/gpt_oss`).

use super::{Arch, Source};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch = Arch {
    name: "gpt-oss",
    model_type: "gpt_oss",
    rope_interleaved_qk: false,
    names: &[("ffn_gate_inp", "mlp.router"), ("post_attention_norm", "post_attention_layernorm")],
    extend,
    gather: super::as_stored,
};

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    if let Some(Value::Object(scaling)) = config.get_mut("rope_scaling") {
        scaling.insert("truncate".into(), false.into());
    }
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    set("num_local_experts", source.value("expert_count"));
    set("num_experts_per_tok", source.value("expert_used_count"));
    set("intermediate_size", source.value("expert_feed_forward_length"));
    set("sliding_window", source.value("attention.sliding_window"));
    set("attention_bias", Some(source.has_tensor("blk.0.attn_q.bias").into()));
}
