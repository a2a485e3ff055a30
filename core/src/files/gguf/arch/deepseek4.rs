//! deepseek4: deepseek_v4 under its published names within a layer.

use super::{Arch, Source, Tensors, mtp};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch =
    Arch { name: "deepseek4", model_type: "deepseek_v4", rope_interleaved_qk: true, names: NAMES, extend, gather };

const NAMES: &[(&str, &str)] = &[
    ("attn_compressor_ape.weight", "attn.compressor.ape"),
    ("attn_compressor_gate", "attn.compressor.wgate"),
    ("attn_compressor_kv", "attn.compressor.wkv"),
    ("attn_compressor_norm", "attn.compressor.norm"),
    ("attn_kv", "attn.wkv"),
    ("attn_kv_a_norm", "attn.kv_norm"),
    ("attn_norm", "attn_norm"),
    ("attn_output_a", "attn.wo_a"),
    ("attn_output_b", "attn.wo_b"),
    ("attn_q_a", "attn.wq_a"),
    ("attn_q_a_norm", "attn.q_norm"),
    ("attn_q_b", "attn.wq_b"),
    ("attn_sinks.weight", "attn.attn_sink"),
    ("exp_probs_b.bias", "ffn.gate.bias"),
    ("ffn_down_exps.weight", "ffn.experts.w2"),
    ("ffn_down_shexp", "ffn.shared_experts.w2"),
    ("ffn_gate_exps.weight", "ffn.experts.w1"),
    ("ffn_gate_inp", "ffn.gate"),
    ("ffn_gate_shexp", "ffn.shared_experts.w1"),
    ("ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_up_exps.weight", "ffn.experts.w3"),
    ("ffn_up_shexp", "ffn.shared_experts.w3"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_fn.weight", "hc_attn_fn"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_fn.weight", "hc_ffn_fn"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
    ("indexer.attn_q_b", "attn.indexer.wq_b"),
    ("indexer.proj", "attn.indexer.weights_proj"),
    ("indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("indexer_compressor_norm", "attn.indexer.compressor.norm"),
];

/// Keys of the model's configuration and the metadata they stand in.
const KEYS: &[(&str, &str)] = &[
    ("compress_ratios", "attention.compress_ratios"),
    ("compress_rope_theta", "attention.compress_rope_freq_base"),
    ("hc_eps", "hyper_connection.epsilon"),
    ("hc_mult", "hyper_connection.count"),
    ("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
    ("index_head_dim", "attention.indexer.key_length"),
    ("index_n_heads", "attention.indexer.head_count"),
    ("index_topk", "attention.indexer.top_k"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("num_hash_layers", "hash_layer_count"),
    ("o_groups", "attention.output_group_count"),
    ("o_lora_rank", "attention.output_lora_rank"),
    ("q_lora_rank", "attention.q_lora_rank"),
    ("qk_rope_head_dim", "rope.dimension_count"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("sliding_window", "attention.sliding_window"),
];

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    for (key, metadata) in KEYS {
        if let Some(value) = source.value(metadata) {
            config.insert((*key).into(), value);
        }
    }
    // One limit a layer here, one for all there.
    let limit = source.value("swiglu_clamp_exp").and_then(|limits| limits.as_array()?.first().cloned());
    config.extend(limit.map(|limit| ("swiglu_limit".to_string(), limit)));
}

fn gather(source: &Source<'_>, tensors: &mut Tensors) -> Result<(), String> {
    mtp::gather(source, tensors, false);
    Ok(())
}
