//! From Hugging Face's names and configuration keys to GGUF's: the reverse of what `files::gguf::arch` reads.

use super::Pair;
use crate::export::error::ExportError;
use crate::files::StorageFacts;
use crate::files::gguf_arch as names;
use crate::json::Config;
use crate::model::declare::Declared;
use std::collections::BTreeMap;

/// An architecture that can be written.
pub(in super::super) struct Arch {
    /// Its `general.architecture`.
    pub(in super::super) name: &'static str,
    /// Values of `model_type` that become it.
    model_types: &'static [&'static str],
    /// Names within a layer beside those that readers share: (GGUF's, Hugging Face's).
    extra: &'static [(&'static str, &'static str)],
    /// Metadata that only this family has.
    extend: fn(&Config, &mut Pairs) -> Result<(), ExportError>,
}

/// All architectures, sorted by name.
pub(in super::super) const ARCHS: &[Arch] = &[
    Arch { name: "gemma3", model_types: &["gemma3", "gemma3_text"], extra: &[], extend: gemma3 },
    Arch { name: "llama", model_types: &["llama", "mistral"], extra: &[], extend: llama },
    Arch { name: "qwen2", model_types: &["qwen2"], extra: &[], extend: |_, _| Ok(()) },
    Arch { name: "qwen3", model_types: &["qwen3"], extra: &[], extend: |_, _| Ok(()) },
    Arch { name: "qwen3moe", model_types: &["qwen3_moe"], extra: EXPERTS, extend: qwen3moe },
];

const EXPERTS: &[(&str, &str)] = &[
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
];

/// Metadata under `{architecture}.`.
pub(in super::super) struct Pairs {
    arch: &'static str,
    pub(in super::super) list: Vec<(String, Pair)>,
}

impl Pairs {
    fn set(&mut self, key: &str, value: Pair) {
        self.list.push((format!("{}.{key}", self.arch), value));
    }

    fn size(&mut self, key: &str, value: Option<usize>) {
        if let Some(value) = value.and_then(|value| u32::try_from(value).ok()) {
            self.set(key, Pair::U32(value));
        }
    }

    fn number(&mut self, key: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.set(key, Pair::F32(value as f32));
        }
    }
}

/// Rows of tensors of the source that follow each other in a tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Run {
    /// The source tensor's Hugging Face name.
    pub(in super::super) source: String,
    /// Its first row.
    pub(in super::super) first: usize,
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Tensor {
    /// Its name in the file.
    pub(in super::super) name: String,
    /// PyTorch order.
    pub(in super::super) shape: Vec<usize>,
    /// Where its rows are, as many of each source.
    pub(in super::super) runs: Vec<Run>,
    /// Heads within which rows are reordered for rotating neighbouring pairs.
    pub(in super::super) heads: Option<usize>,
    /// Added to every value.
    pub(in super::super) add: f32,
}

/// The architecture that a text model's config becomes.
pub(in super::super) fn find(config: &Config) -> Result<&'static Arch, ExportError> {
    let family = config.str("model_type")?;
    ARCHS.iter().find(|arch| arch.model_types.contains(&family)).ok_or_else(|| {
        let known: Vec<_> = ARCHS.iter().flat_map(|arch| arch.model_types).copied().collect();
        ExportError::unsupported(
            format!("writing a `{family}` model as GGUF is not supported; supported: {}", known.join(" ")),
            "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
        )
    })
}

impl Arch {
    /// The metadata that describe `config`.
    pub(in super::super) fn pairs(&self, config: &Config) -> Result<Vec<(String, Pair)>, ExportError> {
        let mut pairs = Pairs { arch: self.name, list: Vec::new() };
        let heads = config.positive("num_attention_heads")?;
        let head_dim = head_dim(config)?;
        pairs.size("block_count", Some(config.positive("num_hidden_layers")?));
        pairs.size("context_length", Some(config.usize_or("max_position_embeddings", 2048)?));
        pairs.size("embedding_length", Some(config.positive("hidden_size")?));
        pairs.size("feed_forward_length", Some(config.positive("intermediate_size")?));
        pairs.size("attention.head_count", Some(heads));
        pairs.size("attention.head_count_kv", Some(config.usize_or("num_key_value_heads", heads)?));
        pairs.size("attention.key_length", Some(head_dim));
        pairs.size("attention.value_length", Some(head_dim));
        pairs.number("attention.layer_norm_rms_epsilon", Some(config.f64_or("rms_norm_eps", 1e-6)?));
        pairs.size("vocab_size", Some(config.positive("vocab_size")?));
        rope(config, &mut pairs)?;
        (self.extend)(config, &mut pairs)?;
        Ok(pairs.list)
    }

    /// The tensors of the file made of `declared` ones, in their order.
    pub(in super::super) fn tensors(
        &self,
        config: &Config,
        storage: &StorageFacts,
        declared: &[Declared],
    ) -> Result<Vec<Tensor>, ExportError> {
        let heads = config.positive("num_attention_heads")?;
        let kv_heads = config.usize_or("num_key_value_heads", heads)?;
        // The source may be a file in which they lie so already.
        let reorder = names::rotates_pairs(self.name) && !storage.rope_interleaved_qk;
        let mut out: Vec<Tensor> = Vec::new();
        let mut stacks: BTreeMap<String, usize> = BTreeMap::new();
        for weight in declared {
            for (plain, shape, first) in split_experts(weight) {
                let name = self.name_of(&plain.name).ok_or_else(|| {
                    ExportError::unsupported(
                        format!("tensor `{}` has no name in GGUF files of `{}`", weight.name, self.name),
                        "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
                    )
                })?;
                let run = Run { source: weight.name.clone(), first };
                if let Some(expert) = plain.expert {
                    match stacks.get(&name) {
                        None => drop(stacks.insert(name.clone(), out.len())),
                        Some(at) => {
                            let stack = &mut out[*at];
                            if stack.shape[0] != expert {
                                return Err(ExportError::unsupported(
                                    format!("experts of `{name}` are not in order at `{}`", weight.name),
                                    "report the model",
                                ));
                            }
                            stack.runs.push(run);
                            stack.shape[0] += 1;
                            continue;
                        }
                    }
                }
                let within = match plain.name.rsplit_once('.').map_or("", |(module, _)| module) {
                    module if module.ends_with("q_proj") => Some(heads),
                    module if module.ends_with("k_proj") => Some(kv_heads),
                    _ => None,
                };
                let add = if plain.name.ends_with("norm.weight") { storage.norm_weight_offset } else { 0.0 };
                let runs = match shape[..] {
                    // A fused stack: as many rows of each expert, a stride apart.
                    [experts, ..] if shape.len() == 3 && plain.expert.is_none() => {
                        let stride = weight.shape[1];
                        (0..experts).map(|i| Run { source: weight.name.clone(), first: first + i * stride }).collect()
                    }
                    _ => vec![run],
                };
                out.push(Tensor { name, shape, runs, heads: within.filter(|_| reorder), add });
            }
        }
        Ok(out)
    }

    fn name_of(&self, plain: &str) -> Option<String> {
        names::stored_name(self.name, plain).or_else(|| {
            let (layer, rest) = plain.strip_prefix("model.layers.")?.split_once('.')?;
            let (module, kind) = rest.rsplit_once('.')?;
            let (part, _) = self.extra.iter().find(|(_, plain)| *plain == module)?;
            Some(format!("blk.{layer}.{part}.{kind}"))
        })
    }
}

/// What a declared tensor is called without its expert's number, and which expert it is of.
struct Plain {
    name: String,
    expert: Option<usize>,
}

/// A declared tensor as tensors that GGUF has names for: an expert's map as the first of a stack, a fused stack of gate
/// and up as two. Each with its shape and its first row in the declared one.
fn split_experts(weight: &Declared) -> Vec<(Plain, Vec<usize>, usize)> {
    let plain = |name: &str, expert| Plain { name: name.into(), expert };
    if let Some((before, rest)) = weight.name.split_once(".experts.") {
        if let Some((number, module)) = rest.split_once('.')
            && let Ok(expert) = number.parse()
        {
            let shape = [1].into_iter().chain(weight.shape.iter().copied()).collect();
            return vec![(plain(&format!("{before}.experts.{module}"), Some(expert)), shape, 0)];
        }
        if let (Some(_), [experts, rows, width]) = (rest.strip_prefix("gate_up_proj"), &weight.shape[..]) {
            let half = rows / 2;
            return [("gate_proj", 0), ("up_proj", half)]
                .map(|(module, first)| {
                    let name = format!("{before}.experts.{module}.weight");
                    (plain(&name, None), vec![*experts, half, *width], first)
                })
                .into();
        }
        if rest == "down_proj" {
            return vec![(plain(&format!("{}.weight", weight.name), None), weight.shape.clone(), 0)];
        }
    }
    vec![(plain(&weight.name, None), weight.shape.clone(), 0)]
}

fn head_dim(config: &Config) -> Result<usize, ExportError> {
    let width = config.positive("hidden_size")? / config.positive("num_attention_heads")?;
    Ok(config.usize_or("head_dim", width)?)
}

/// The parameters of rotation: of the layers that see everything, where kinds of layers differ.
fn rope_of(config: &Config) -> Result<(f64, Option<Config>), ExportError> {
    match config.opt_object("rope_parameters")? {
        Some(parameters) => {
            let own = parameters.opt_object("full_attention")?.unwrap_or(parameters);
            Ok((own.f64_or("rope_theta", config.f64_or("rope_theta", 10_000.0)?)?, Some(own)))
        }
        None => Ok((config.f64_or("rope_theta", 10_000.0)?, config.opt_object("rope_scaling")?)),
    }
}

fn kind_of(scaling: &Config) -> Result<String, ExportError> {
    Ok(scaling.opt_str("rope_type")?.or(scaling.opt_str("type")?).unwrap_or("default").into())
}

fn rope(config: &Config, pairs: &mut Pairs) -> Result<(), ExportError> {
    let (theta, scaling) = rope_of(config)?;
    pairs.number("rope.freq_base", Some(theta));
    let Some(scaling) = scaling else { return Ok(()) };
    let kind = kind_of(&scaling)?;
    match kind.as_str() {
        // llama3's factors are a tensor.
        "default" | "llama3" => {}
        "linear" | "yarn" => {
            pairs.set("rope.scaling.type", kind.as_str().into());
            pairs.number("rope.scaling.factor", scaling.opt_f64("factor")?);
            if kind == "yarn" {
                let original = scaling.opt_usize("original_max_position_embeddings")?;
                pairs.size("rope.scaling.original_context_length", original);
                for (key, plain) in [
                    ("yarn_ext_factor", "extrapolation_factor"),
                    ("yarn_beta_fast", "beta_fast"),
                    ("yarn_beta_slow", "beta_slow"),
                ] {
                    pairs.number(&format!("rope.scaling.{key}"), scaling.opt_f64(plain)?);
                }
                // Here it takes the place of the usual magnitude, there it is a factor on top.
                let own = scaling.opt_f64("attention_factor")?.zip(scaling.opt_f64("factor")?);
                pairs.number("rope.scaling.attn_factor", own.map(|(own, factor)| own / (0.1 * factor.ln() + 1.0)));
            }
        }
        other => {
            return Err(ExportError::unsupported(
                format!("rotation scaled as `{other}` cannot be written as GGUF"),
                "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
            ));
        }
    }
    Ok(())
}

/// Divisors of the frequencies that stand in a tensor instead of metadata.
pub(in super::super) fn rope_freqs(config: &Config) -> Result<Option<Vec<f32>>, ExportError> {
    let (theta, scaling) = rope_of(config)?;
    let Some(scaling) = scaling else { return Ok(None) };
    if kind_of(&scaling)? != "llama3" {
        return Ok(None);
    }
    let dim = head_dim(config)?;
    let factor = scaling.f64_or("factor", 8.0)?;
    let (low, high) = (scaling.f64_or("low_freq_factor", 1.0)?, scaling.f64_or("high_freq_factor", 4.0)?);
    let original = scaling.f64_or("original_max_position_embeddings", 8192.0)?;
    let divisor = |i: usize| {
        let wavelength = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / dim as f64);
        let turns = original / wavelength;
        if turns < low {
            factor
        } else if turns > high {
            1.0
        } else {
            let share = (turns - low) / (high - low);
            1.0 / ((1.0 - share) / factor + share)
        }
    };
    Ok(Some((0..dim / 2).map(|i| divisor(i) as f32).collect()))
}

fn llama(config: &Config, pairs: &mut Pairs) -> Result<(), ExportError> {
    if config.opt_usize("sliding_window")?.is_some() {
        return Err(ExportError::unsupported(
            "a llama GGUF has no attention window, and this model's config sets `sliding_window`",
            "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
        ));
    }
    pairs.size("rope.dimension_count", Some(head_dim(config)?));
    Ok(())
}

fn qwen3moe(config: &Config, pairs: &mut Pairs) -> Result<(), ExportError> {
    if !config.bool_or("norm_topk_prob", false)? {
        return Err(ExportError::unsupported(
            "a qwen3moe GGUF always renormalises expert weights, and this model's config says `norm_topk_prob: false`",
            "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
        ));
    }
    let experts = if config.has("num_local_experts") { "num_local_experts" } else { "num_experts" };
    pairs.size("expert_count", Some(config.positive(experts)?));
    pairs.size("expert_used_count", Some(config.positive("num_experts_per_tok")?));
    pairs.size("expert_feed_forward_length", Some(config.positive("moe_intermediate_size")?));
    Ok(())
}

fn gemma3(config: &Config, pairs: &mut Pairs) -> Result<(), ExportError> {
    let local = match config.opt_object("rope_parameters")? {
        Some(parameters) => parameters.opt_object("sliding_attention")?.map(|own| own.opt_f64("rope_theta")),
        None => Some(config.opt_f64("rope_local_base_freq")),
    };
    pairs.number("rope.freq_base_swa", local.transpose()?.flatten());
    pairs.size("attention.sliding_window", config.opt_usize("sliding_window")?);
    pairs.number("final_logit_softcapping", config.opt_f64("final_logit_softcapping")?);
    // Readers know two rules for the scale of attention and no key.
    let (scalar, head) = (config.f64_or("query_pre_attn_scalar", 256.0)?, head_dim(config)? as f64);
    let by_width = (config.positive("hidden_size")? / config.positive("num_attention_heads")?) as f64;
    let rule = if config.usize("num_hidden_layers")? == 62 { by_width } else { head };
    let period = config.usize_or("sliding_window_pattern", 6)?;
    let types = config.opt_str_list("layer_types")?;
    let regular = types
        .is_none_or(|types| types.iter().enumerate().all(|(i, kind)| (kind == "full_attention") == ((i + 1) % 6 == 0)));
    if scalar != rule || period != 6 || !regular {
        return Err(ExportError::unsupported(
            "a gemma3 GGUF has no place for this model's `query_pre_attn_scalar` or its order of window layers",
            "write safetensors instead (fp8_block, int4, nvfp4, mxfp4)",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archs_are_sorted_and_their_types_disjoint() {
        assert!(ARCHS.is_sorted_by_key(|arch| arch.name));
        let mut types: Vec<_> = ARCHS.iter().flat_map(|arch| arch.model_types).collect();
        let count = types.len();
        types.sort();
        types.dedup();
        assert_eq!(types.len(), count);
    }

    #[test]
    fn experts_are_stacked_and_fused_ones_taken_apart() {
        let weight = |name: &str, shape: &[usize]| Declared { name: name.into(), shape: shape.to_vec() };
        let config = Config::parse(br#"{"num_attention_heads": 2}"#, "test").unwrap();
        let arch = ARCHS.iter().find(|arch| arch.name == "qwen3moe").unwrap();
        let tensors = |list: &[Declared]| arch.tensors(&config, &StorageFacts::default(), list).unwrap();
        let single: Vec<_> =
            (0..3).map(|i| weight(&format!("model.layers.1.mlp.experts.{i}.gate_proj.weight"), &[4, 8])).collect();
        let made = tensors(&single);
        assert_eq!((made.len(), made[0].name.as_str()), (1, "blk.1.ffn_gate_exps.weight"));
        assert_eq!((made[0].shape.as_slice(), made[0].runs.len()), (&[3, 4, 8][..], 3));
        let made = tensors(&[weight("model.layers.0.mlp.experts.gate_up_proj", &[3, 8, 16])]);
        assert_eq!(made[1].name, "blk.0.ffn_up_exps.weight");
        assert_eq!(made[1].shape, [3, 4, 16]);
        assert_eq!(made[1].runs.iter().map(|run| run.first).collect::<Vec<_>>(), [4, 12, 20]);
    }
}
