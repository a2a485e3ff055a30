//! A checkpoint from a GGUF file, or from the parts of a split one.

use super::checkpoint::{Checkpoint, Container, Generation, NoConfig, StorageFacts};
use super::error::FileError;
use super::gguf::{self, Gguf, Metadata, arch};
use super::packed::scaled;
use super::tensor::StoredTensor;
use crate::json::Config;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Most parts that a split file may have.
const MAX_PARTS: u64 = 10_000;

/// The `token_type` of tokens that stand for structure.
const CONTROL: f64 = 3.0;

/// Texts of tokens that end a reply in one family or another. Files name one such token, seldom all.
const ENDS: &[&str] = &[
    "</s>",
    "<EOT>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|call|>",
    "<|calls|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|flush|>",
    "<|im_end|>",
    "<|return|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
];

/// Opens `file`; `path` is what the user gave.
pub(super) fn open(path: &Path, file: &Path) -> Result<Checkpoint, FileError> {
    let (gguf, files) = open_parts(file)?;
    let (config, storage, arch) = match gguf.metadata.str("general.architecture") {
        None => (Err(NoConfig::Unnamed), StorageFacts::default(), None),
        Some(name) => match arch::find(name) {
            None => (Err(NoConfig::Unknown(name.into())), StorageFacts::default(), None),
            Some(arch) => {
                let facts = StorageFacts {
                    rope_interleaved_qk: arch.rope_interleaved_qk,
                    norm_weight_offset: 0.0,
                    delta_heads_tiled: true,
                    decay_as_rate: true,
                };
                let origin = format!("{} (metadata of {name})", file.display());
                (Ok(Config::from_map(arch.config(&gguf), &origin)), facts, Some(arch))
            }
        },
    };
    let (eos_ids, bos_id) = special_ids(&gguf.metadata)?;
    let damaged = |what| FileError::Damaged { path: file.into(), what };
    let mut tensors = by_name(file, scaled::gather_gguf(gguf.tensors.clone()).map_err(damaged)?, arch)?;
    if let Some(arch) = arch {
        arch.gather(&gguf, &mut tensors).map_err(damaged)?;
    }
    Ok(Checkpoint {
        path: path.into(),
        container: Container::Gguf,
        config,
        tokenizer_config: None,
        tokenizer_json: None,
        template_file: None,
        generation: generation(&gguf.metadata),
        eos_ids,
        bos_id,
        tensors,
        metadata: Some(gguf.metadata),
        storage,
        files,
        manifest: OnceLock::new(),
    })
}

/// Opens `file` and, if it is a part of a split file, the other parts; the metadata are the first part's.
fn open_parts(file: &Path) -> Result<(Gguf, Vec<PathBuf>), FileError> {
    let mut first = gguf::open(file)?;
    let count = first.metadata.value("split.count").and_then(|count| count.as_u64()).unwrap_or(1);
    if count <= 1 {
        return Ok((first, vec![file.into()]));
    }
    let damaged = |what: String| FileError::Damaged { path: file.into(), what };
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let base = part_base(&name, count).ok_or_else(|| {
        damaged(format!(
            "it is a part of {count} of a split model, and its name does not end as -00001-of-{count:05}.gguf does"
        ))
    })?;
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for part in 1..=count {
        let path = file.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf"));
        if !path.is_file() {
            return Err(damaged(format!(
                "it is a part of a split model, and part {part} of {count} is not there: {}",
                path.display()
            )));
        }
        let gguf = gguf::open(&path)?;
        tensors.extend(gguf.tensors);
        if part == 1 {
            first.metadata = gguf.metadata;
        }
        files.push(path);
    }
    let stated = first.metadata.value("split.tensors.count").and_then(|count| count.as_u64());
    if let Some(stated) = stated.filter(|stated| *stated != tensors.len() as u64) {
        return Err(damaged(format!("its parts hold {} tensors, it states {stated}", tensors.len())));
    }
    first.tensors = tensors;
    Ok((first, files))
}

/// What stands before `-00001-of-00003.gguf`.
fn part_base(name: &str, count: u64) -> Option<&str> {
    if count > MAX_PARTS {
        return None;
    }
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (base, part) = stem.rsplit_once('-')?;
    (part.len() == 5 && part.bytes().all(|digit| digit.is_ascii_digit())).then_some(base)
}

fn by_name(
    file: &Path,
    tensors: Vec<StoredTensor>,
    arch: Option<&arch::Arch>,
) -> Result<BTreeMap<String, StoredTensor>, FileError> {
    let mut out = BTreeMap::new();
    for tensor in tensors {
        let tensor = match arch.and_then(|arch| arch.tensor_name(tensor.stored_name())) {
            Some(name) => tensor.renamed(&name),
            None => tensor,
        };
        let name = tensor.name().to_string();
        if out.insert(name.clone(), tensor).is_some() {
            return Err(FileError::Damaged { path: file.into(), what: format!("two tensors are `{name}`") });
        }
    }
    Ok(out)
}

fn generation(metadata: &Metadata) -> Generation {
    let value = |key: &str| metadata.value(&format!("general.sampling.{key}"));
    let f64 = |key: &str| value(key).as_ref().and_then(Value::as_f64);
    let top_k = value("top_k").as_ref().and_then(Value::as_u64).and_then(|k| usize::try_from(k).ok());
    let (temperature, top_p) = (f64("temp"), f64("top_p"));
    Generation {
        do_sample: (temperature.is_some() || top_p.is_some() || top_k.is_some()).then_some(true),
        temperature,
        top_k,
        top_p,
        min_p: f64("min_p"),
        repetition_penalty: f64("penalty_repeat"),
    }
}

/// The ids that end a reply, and the one that begins a text.
fn special_ids(metadata: &Metadata) -> Result<(BTreeSet<u32>, Option<u32>), FileError> {
    let tokens = metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
    let there = |id: &u32| (*id as usize) < tokens.len();
    let id = |name: &str| metadata.id(&format!("tokenizer.ggml.{name}_token_id")).filter(there);
    let mut eos: BTreeSet<u32> = ["eos", "eot", "eom"].into_iter().filter_map(id).collect();
    let types = metadata.numbers("tokenizer.ggml.token_type")?.unwrap_or_default();
    for (i, token) in tokens.iter().enumerate() {
        // A vocabulary may have `</s>` as the HTML tag; a text between bars is a marker whatever its type says.
        let is_marker = types.get(i).is_none_or(|kind| *kind == CONTROL) || token.starts_with("<|");
        if is_marker && ENDS.contains(token) {
            eos.extend(u32::try_from(i));
        }
    }
    // Where a reply is made of several messages, `<|end|>` ends one of them and not the reply.
    if tokens.contains(&"<|return|>") && tokens.contains(&"<|call|>") {
        let stated = id("eos");
        eos.retain(|id| tokens[*id as usize] != "<|end|>" || Some(*id) == stated);
    }
    let is_sentencepiece = metadata.str("tokenizer.ggml.model") == Some("llama");
    let (default_bos, default_eos) = if is_sentencepiece { (Some(1), Some(2)) } else { (None, None) };
    if eos.is_empty() {
        eos.extend(default_eos.filter(there));
    }
    Ok((eos, id("bos").or(default_bos.filter(there))))
}
