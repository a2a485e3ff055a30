//! qwen4exp, text: qwen35moe's layers on several residual streams, with an indexer in the layers of attention and hashed
//! n-grams in one of the others. Norm weights are stored as 1 + w; the hash's numbers are metadata, its table one tensor.

use super::{Arch, Source, Tensors, mtp, qwen35};
use crate::files::gguf::joined::joined;
use crate::files::{DType, StoredTensor};
use serde_json::{Map, Value};

pub(super) const ARCH: Arch =
    Arch { name: "qwen4exp", model_type: "qwen4_exp_text", rope_interleaved_qk: false, names: NAMES, extend, gather };

const NAMES: &[(&str, &str)] = &[
    ("attn_gate", "linear_attn.in_proj_z"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    ("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    ("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    ("indexer.k_norm", "self_attn.indexer.k_layernorm"),
    ("indexer.k_proj", "self_attn.indexer.k_proj"),
    ("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    ("indexer.q_proj", "self_attn.indexer.q_proj"),
    ("ple_conv1d", "ple.conv1d"),
    ("ple_key", "ple.key_proj"),
    ("ple_norm_conv", "ple.norm_conv"),
    ("ple_norm_key", "ple.norm_key"),
    ("ple_norm_query", "ple.norm_query"),
    ("ple_value", "ple.value_proj"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// Keys of the model's configuration and the metadata they stand in.
const KEYS: &[(&str, &str)] = &[
    ("eos_token_id", "ple.eos_token_id"),
    ("hc_count", "hyper_connection.count"),
    ("hc_lowrank", "hyper_connection.low_rank"),
    ("heads_per_ngram", "ple.heads_per_ngram"),
    ("indexer_budget", "attention.indexer.top_k"),
    ("indexer_head_dim", "attention.indexer.key_length"),
    ("indexer_n_heads", "attention.indexer.head_count"),
    ("ngram_size", "ple.ngram_size"),
    ("ple_conv_kernel_size", "ple.conv_kernel"),
];

/// Names outside the layers.
const OUTSIDE: &[(&str, &str)] = &[
    ("output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight"),
    ("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight"),
    ("output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight"),
];

/// The hash's numbers: the model's tensors and the metadata they stand in.
const HASH: &[(&str, &str)] = &[
    ("layer_multipliers", "ple.layer_multipliers"),
    ("ngram_heads_offsets", "ple.head_offsets"),
    ("ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
];

fn extend(source: &Source<'_>, config: &mut Map<String, Value>) {
    qwen35::extend_moe(source, config);
    for (key, metadata) in KEYS {
        config.extend(source.value(metadata).map(|value| ((*key).to_string(), value)));
    }
    // Every file is of models whose delta nets have this gate; no key says so.
    config.insert("output_gate_type".into(), "sigmoid".into());
    let ratios = source.value("attention.compress_ratios");
    let ratio = ratios.as_ref().and_then(Value::as_array).and_then(|all| all.iter().find(|r| r.as_u64() != Some(0)));
    config.extend(ratio.map(|ratio| ("indexer_compress_ratio".to_string(), ratio.clone())));
    // Layers count from 0 here and from 1 there.
    let layers = ple_layers(source).into_iter().map(|layer| Value::from(layer.saturating_add(1)));
    config.insert("ple_layer_ids".into(), layers.collect());
    let width = source.u64("embedding_length_per_layer_input").zip(source.u64("ple.heads_per_ngram"));
    let width = width
        .zip(source.u64("ple.ngram_size"))
        .and_then(|((row, heads), size)| row.checked_mul(heads)?.checked_mul(size.saturating_sub(1)));
    config.extend(width.map(|width| ("ple_embed_dim".to_string(), width.into())));
}

fn ple_layers(source: &Source<'_>) -> Vec<u64> {
    let layers = source.value("ple.layers");
    layers.as_ref().and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect()
}

fn gather(source: &Source<'_>, tensors: &mut Tensors) -> Result<(), String> {
    mtp::gather(source, tensors, false);
    qwen35::shape_gates(tensors)?;
    for (stored, plain) in OUTSIDE {
        if let Some(tensor) = tensors.remove(*stored) {
            tensors.insert((*plain).into(), tensor.renamed(plain));
        }
    }
    let of_layer = |name: &str| name.strip_suffix(".indexer.q_proj.weight").map(String::from);
    for module in tensors.keys().filter_map(|name| of_layer(name)).collect::<Vec<_>>() {
        let [q, k] = ["q", "k"].map(|part| tensors.remove(&format!("{module}.indexer.{part}_proj.weight")));
        let (Some(q), Some(k)) = (q, k) else {
            return Err(format!("`{module}.indexer.k_proj.weight` is missing"));
        };
        let name = format!("{module}.indexer.index_qk_proj.weight");
        tensors.insert(name.clone(), joined(&name, [q, k])?);
    }
    let Some(layer) = ple_layers(source).first().copied() else { return Ok(()) };
    let ple = format!("model.layers.{layer}.ple");
    for (name, key) in HASH {
        let name = format!("{ple}.ple_embedding.{name}");
        let numbers = source.value(key);
        let numbers = numbers.as_ref().and_then(Value::as_array);
        let numbers: Option<Vec<i64>> = numbers.and_then(|all| all.iter().map(Value::as_i64).collect());
        let numbers = numbers.ok_or_else(|| format!("its metadata key `{}.{key}` is no list of numbers", ARCH.name))?;
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let tensor = StoredTensor::from_bytes(&name, DType::I64, &[numbers.len()], bytes);
        tensors.insert(name, tensor.map_err(|error| error.to_string())?);
    }
    if let Some(table) = tensors.remove("per_layer_token_embd.weight") {
        let name = format!("{ple}.ple_embedding.ngram_embedding.shard_0.weight");
        tensors.insert(name.clone(), table.renamed(&name));
    }
    let name = format!("{ple}.conv1d.weight");
    if let Some(conv) = tensors.get(&name)
        && let [channels, kernel] = conv.shape()[..]
    {
        let conv = conv.part(&name, 0..channels, &[channels, 1, kernel]).map_err(|error| error.to_string())?;
        tensors.insert(name, conv);
    }
    Ok(())
}
