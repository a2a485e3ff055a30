//! From GGUF's architectures to Hugging Face's names and configuration keys, a file each.

mod deepseek2;
mod deepseek4;
mod gemma3;
mod gpt_oss;
mod llama;
mod mtp;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen4exp;

use super::{Gguf, Metadata};
use crate::files::StoredTensor;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What is to be known of an architecture.
pub(crate) struct Arch {
    /// Its `general.architecture`.
    pub(crate) name: &'static str,
    /// Its `model_type`.
    pub(crate) model_type: &'static str,
    /// Whether rows of q and k are stored for rotating neighbouring pairs.
    pub(crate) rope_interleaved_qk: bool,
    /// Names within a layer that differ from the common ones.
    names: &'static [(&'static str, &'static str)],
    /// Adds the configuration keys that only this family has.
    extend: fn(&Source<'_>, &mut Map<String, Value>),
    /// Puts tensors that the file has in another form in the place of those, all under their plain names.
    gather: fn(&Source<'_>, &mut Tensors) -> Result<(), String>,
}

/// Tensors of a file by name.
pub(crate) type Tensors = BTreeMap<String, StoredTensor>;

/// For families whose tensors are as in their Hugging Face checkpoints.
fn as_stored(_: &Source<'_>, _: &mut Tensors) -> Result<(), String> {
    Ok(())
}

/// All architectures, sorted.
pub(crate) const ARCHS: &[Arch] = &[
    deepseek2::ARCH,
    deepseek4::ARCH,
    gemma3::ARCH,
    gpt_oss::ARCH,
    llama::ARCH,
    qwen2::ARCH,
    qwen3::ARCH,
    qwen35::ARCH,
    qwen35::MOE,
    qwen3moe::ARCH,
    qwen4exp::ARCH,
];

/// Names outside the layers.
const OUTSIDE: &[(&str, &str)] =
    &[("output", "lm_head"), ("output_norm", "model.norm"), ("token_embd", "model.embed_tokens")];

/// Tensors outside the layers whose plain names have no kind.
const OUTSIDE_WHOLE: &[(&str, &str)] = &[
    ("output_hc_base.weight", "hc_head_base"),
    ("output_hc_fn.weight", "hc_head_fn"),
    ("output_hc_scale.weight", "hc_head_scale"),
];

/// Names within a layer that most families share.
const COMMON: &[(&str, &str)] = &[
    ("attn_k", "self_attn.k_proj"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_norm", "input_layernorm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.up_proj"),
];

/// Tensors within a layer whose names the kind is a part of, or whose plain names have none.
const WHOLE: &[(&str, &str)] = &[
    ("attn_sinks.weight", "self_attn.sinks"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    ("ffn_down_exps.weight", "mlp.experts.down_proj"),
    ("ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"),
    ("ffn_gate_exps.weight", "mlp.experts.gate_proj"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("ffn_up_exps.bias", "mlp.experts.up_proj_bias"),
    ("ffn_up_exps.weight", "mlp.experts.up_proj"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
];

/// The architecture with this `general.architecture`.
pub(crate) fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|arch| arch.name == name)
}

/// Whether files of this architecture hold the rows of q and k for rotating neighbouring pairs.
pub(crate) fn rotates_pairs(name: &str) -> bool {
    find(name).is_some_and(|arch| arch.rope_interleaved_qk)
}

/// The name in files of the architecture `name` of the tensor with the Hugging Face name `plain`, if it has one.
pub(crate) fn stored_name(name: &str, plain: &str) -> Option<String> {
    let (module, kind) = plain.rsplit_once('.')?;
    if let Some((stored, _)) = OUTSIDE.iter().find(|(_, outside)| *outside == module) {
        return Some(format!("{stored}.{kind}"));
    }
    let (layer, module) = module.strip_prefix("model.layers.")?.split_once('.')?;
    let own = find(name).map_or(&[][..], |arch| arch.names);
    let is_own = |stored: &str| own.iter().any(|(name, _)| *name == stored);
    let common = COMMON.iter().filter(|(stored, _)| !is_own(stored));
    let (stored, _) = own.iter().chain(common).find(|(_, plain)| *plain == module)?;
    Some(format!("blk.{}.{stored}.{kind}", layer.parse::<u32>().ok()?))
}

/// A file of a known architecture.
pub(crate) struct Source<'a> {
    arch: &'a Arch,
    gguf: &'a Gguf,
}

impl<'a> Source<'a> {
    /// The metadata value under `{architecture}.{key}`.
    fn value(&self, key: &str) -> Option<Value> {
        self.metadata().value(&format!("{}.{key}", self.arch.name))
    }

    fn f64(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    fn u64(&self, key: &str) -> Option<u64> {
        self.value(key)?.as_u64()
    }

    fn metadata(&self) -> &'a Metadata {
        &self.gguf.metadata
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors.iter().any(|tensor| tensor.stored_name() == name)
    }

    /// Layers of the model, without those of a drafting head behind them.
    fn layers(&self) -> Option<u64> {
        self.u64("block_count")?.checked_sub(self.u64("nextn_predict_layers").unwrap_or(0))
    }

    fn head_dim(&self) -> Option<Value> {
        self.value("attention.key_length").or_else(|| {
            let (width, heads) = (self.u64("embedding_length")?, self.u64("attention.head_count")?);
            width.checked_div(heads).map(Value::from)
        })
    }
}

impl Arch {
    /// The Hugging Face name of the tensor that the file calls `stored`, if it has one.
    pub(crate) fn tensor_name(&self, stored: &str) -> Option<String> {
        let (stem, kind) = stored.rsplit_once('.')?;
        let find = |names: &[(&str, &'static str)], stem: &str| {
            names.iter().find(|(name, _)| *name == stem).map(|(_, plain)| *plain)
        };
        if let Some(plain) = find(OUTSIDE, stem) {
            return Some(format!("{plain}.{kind}"));
        }
        if let Some(plain) = find(OUTSIDE_WHOLE, stored) {
            return Some(plain.into());
        }
        let (layer, whole) = stored.strip_prefix("blk.")?.split_once('.')?;
        if let Some(plain) = find(self.names, whole).or_else(|| find(WHOLE, whole)) {
            return Some(format!("model.layers.{}.{plain}", layer.parse::<u32>().ok()?));
        }
        let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
        let plain = find(self.names, part).or_else(|| find(COMMON, part))?;
        Some(format!("model.layers.{}.{plain}.{kind}", layer.parse::<u32>().ok()?))
    }

    /// Puts `tensors` of the file `gguf`, by their plain names, into the form of Hugging Face checkpoints.
    pub(crate) fn gather(&self, gguf: &Gguf, tensors: &mut Tensors) -> Result<(), String> {
        (self.gather)(&Source { arch: self, gguf }, tensors)
    }

    /// The configuration in Hugging Face keys. A key whose metadata are missing is left out; whoever needs it says so.
    pub(crate) fn config(&self, gguf: &Gguf) -> Map<String, Value> {
        let source = Source { arch: self, gguf };
        let embedding = gguf.tensors.iter().find(|tensor| tensor.stored_name() == "token_embd.weight");
        let rows = embedding.map(|tensor| Value::from(tensor.rows()));
        let tokens = gguf.metadata.array_len("tokenizer.ggml.tokens").map(Value::from);
        let entries = [
            ("model_type", Some(self.model_type.into())),
            ("hidden_size", source.value("embedding_length")),
            ("intermediate_size", source.value("feed_forward_length")),
            ("num_hidden_layers", source.layers().map(Value::from).or(source.value("block_count"))),
            ("num_attention_heads", source.value("attention.head_count")),
            ("num_key_value_heads", source.value("attention.head_count_kv").or(source.value("attention.head_count"))),
            ("head_dim", source.head_dim()),
            ("vocab_size", rows.or(source.value("vocab_size")).or(tokens)),
            ("max_position_embeddings", source.value("context_length")),
            ("rms_norm_eps", source.value("attention.layer_norm_rms_epsilon")),
            ("rope_theta", Some(source.value("rope.freq_base").unwrap_or(json!(10000.0)))),
            ("rope_scaling", rope_scaling(&source)),
            ("partial_rotary_factor", partial_rotary(&source)),
            ("tie_word_embeddings", Some((!source.has_tensor("output.weight")).into())),
        ];
        let mut map: Map<String, Value> =
            entries.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))).collect();
        (self.extend)(&source, &mut map);
        map
    }
}

fn rope_scaling(source: &Source<'_>) -> Option<Value> {
    let kind = source.value("rope.scaling.type");
    let factor = source.f64("rope.scaling.factor");
    // Old files have a factor and no type.
    let kind = kind.as_ref().and_then(Value::as_str).or(factor.map(|_| "linear"))?;
    if kind == "none" {
        return None;
    }
    let mut out = Map::new();
    let mut set = |key: &str, value: Option<Value>| value.map(|value| out.insert(key.into(), value));
    set("rope_type", Some(kind.into()));
    set("factor", factor.map(Value::from));
    if kind == "yarn" {
        set("original_max_position_embeddings", source.value("rope.scaling.original_context_length"));
        set("beta_fast", source.value("rope.scaling.yarn_beta_fast"));
        set("beta_slow", source.value("rope.scaling.yarn_beta_slow"));
        // Scores then grow by the square of what magnitudes would have grown by.
        let grown = source.f64("rope.scaling.yarn_log_multiplier").filter(|log| *log != 0.0).map(|log| log * 10.0);
        set("mscale", grown.map(Value::from));
        set("mscale_all_dim", grown.map(Value::from));
        // Here it is a factor on top of the usual magnitude, there it takes its place.
        let own = source.f64("rope.scaling.attn_factor").zip(factor);
        set("attention_factor", own.map(|(own, factor)| (own * (0.1 * factor.ln() + 1.0)).into()));
    }
    Some(Value::Object(out))
}

fn partial_rotary(source: &Source<'_>) -> Option<Value> {
    let (rotated, head) = (source.u64("rope.dimension_count")?, source.head_dim()?.as_u64()?);
    (rotated != head && head > 0).then(|| json!(rotated as f64 / head as f64))
}

/// Says whether the projections of attention and of the feed-forward layer have biases, as llama's keys do.
fn bias_keys(source: &Source<'_>, config: &mut Map<String, Value>) {
    config.insert("attention_bias".into(), source.has_tensor("blk.0.attn_q.bias").into());
    config.insert("mlp_bias".into(), source.has_tensor("blk.0.ffn_gate.bias").into());
}
