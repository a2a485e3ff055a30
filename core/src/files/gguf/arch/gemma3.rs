//! gemma3, text: norms around both halves of a layer, windows on most layers with a base frequency of their own. Norm
//! weights are stored as 1 + w.

use super::{Arch, Source};
use serde_json::{Map, Value, json};

pub(super) const ARCH: Arch = Arch {
    name: "gemma3",
    model_type: "gemma3_text",
    rope_interleaved_qk: false,
    names: &[
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    extend,
    gather: super::as_stored,
};

/// Layers of the one size whose attention is scaled by the width per head instead of the head size.
const LAYERS_OF_27B: u64 = 62;

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Option<Value>| value.map(|value| config.insert(key.into(), value));
    set("hidden_activation", Some("gelu_pytorch_tanh".into()));
    set("rope_theta", Some(source.value("rope.freq_base").unwrap_or(json!(1_000_000.0))));
    set("rope_local_base_freq", Some(source.value("rope.freq_base_swa").unwrap_or(json!(10_000.0))));
    set("sliding_window", source.value("attention.sliding_window"));
    set("final_logit_softcapping", source.value("final_logit_softcapping"));
    set("attn_logit_softcapping", source.value("attn_logit_softcapping"));
    set("query_pre_attn_scalar", query_scalar(source));
    match source.value("attention.sliding_window_pattern") {
        // One truth value a layer: whether it has the window.
        Some(Value::Array(windows)) => set("layer_types", windows.iter().map(layer_type).collect()),
        period => set("sliding_window_pattern", Some(period.unwrap_or(json!(6)))),
    };
}

fn layer_type(window: &Value) -> Option<Value> {
    Some(if window.as_bool()? { "sliding_attention" } else { "full_attention" }.into())
}

fn query_scalar(source: &Source<'_>) -> Option<Value> {
    if source.u64("block_count") == Some(LAYERS_OF_27B) {
        let (width, heads) = (source.u64("embedding_length")?, source.u64("attention.head_count")?);
        return width.checked_div(heads).map(Value::from);
    }
    source.head_dim()
}
