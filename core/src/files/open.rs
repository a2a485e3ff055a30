//! From a path to a checkpoint: what lies there, which files belong to it, and what they say.

use super::checkpoint::{Checkpoint, Container, Generation, NoConfig, StorageFacts};
use super::error::FileError;
use super::tensor::StoredTensor;
use super::{open_gguf, packed, safetensors};
use crate::json::{self, Config};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const INDEX: &str = "model.safetensors.index.json";

/// Families whose safetensors checkpoints store norm weights around zero (the factor is 1 + w).
const ZERO_CENTRED: &[&str] = &[
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "qwen4_exp",
    "qwen4_exp_text",
];

/// Where a wrapper checkpoint keeps its text model, and the plain names.
const WRAPPED: &[(&str, &str)] = &[
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
];

pub(super) fn open(path: &Path) -> Result<Checkpoint, FileError> {
    let metadata = std::fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => FileError::NotFound { path: path.into() },
        _ => FileError::Io { path: path.into(), source },
    })?;
    if metadata.is_dir() { open_folder(path) } else { open_file(path, path) }
}

fn open_folder(folder: &Path) -> Result<Checkpoint, FileError> {
    for name in ["model.safetensors", INDEX] {
        if folder.join(name).exists() {
            return open_file(folder, &folder.join(name));
        }
    }
    let names = list(folder)?;
    let ending = |ending: &str| -> Vec<&String> { names.iter().filter(|name| name.ends_with(ending)).collect() };
    // Safetensors beside a GGUF file are something else than its weights.
    let models = [".gguf", ".safetensors"].map(ending).into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    match models[..] {
        [one] => open_file(folder, &folder.join(one)),
        [] => {
            let is_other = |name: &&String| [".bin", ".onnx", ".bin.index.json"].iter().any(|end| name.ends_with(end));
            let what = match names.iter().find(is_other) {
                Some(name) => format!("`{name}` is not of a container that is read (safetensors, GGUF)"),
                None => "no .safetensors and no .gguf file in it".into(),
            };
            Err(FileError::NoModel { path: folder.into(), what })
        }
        _ => {
            let shown: Vec<_> = models.iter().take(8).map(|name| name.as_str()).collect();
            let what = format!("{} files could be meant; give one of them: {}", models.len(), shown.join(", "));
            Err(FileError::NoModel { path: folder.into(), what })
        }
    }
}

fn list(folder: &Path) -> Result<Vec<String>, FileError> {
    let io = |source| FileError::Io { path: folder.into(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Opens `file`; `path` is what the user gave.
fn open_file(path: &Path, file: &Path) -> Result<Checkpoint, FileError> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.ends_with(".safetensors") {
        return open_safetensors(path, file, safetensors::open_file(file)?, vec![file.into()]);
    }
    if name.ends_with(".safetensors.index.json") {
        let (tensors, mut files) = safetensors::open_index(file)?;
        files.push(file.into());
        return open_safetensors(path, file, tensors, files);
    }
    if name.ends_with(".gguf") {
        return open_gguf::open(path, file);
    }
    let what = format!("`{name}` is neither a .safetensors file, nor a .safetensors.index.json, nor a .gguf file");
    Err(FileError::NoModel { path: path.into(), what })
}

fn open_safetensors(
    path: &Path,
    file: &Path,
    tensors: Vec<StoredTensor>,
    mut files: Vec<PathBuf>,
) -> Result<Checkpoint, FileError> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut beside = |name: &str| {
        let found = Some(folder.join(name)).filter(|path| path.is_file());
        files.extend(found.clone());
        found
    };
    let config = beside("config.json").map(|path| read_config(&path)).transpose()?;
    let generation_config = beside("generation_config.json").map(|path| read_config(&path)).transpose()?;
    let tokenizer_config = beside("tokenizer_config.json").map(|path| read_config(&path)).transpose()?;
    let tokenizer_json = beside("tokenizer.json");
    let template_file = beside("chat_template.jinja");
    let wrapped = config.as_ref().is_some_and(|config| config.has("text_config"));
    let text = config.as_ref().map(Config::text).transpose()?;
    let ids =
        special_ids(text.as_ref(), generation_config.as_ref(), tokenizer_config.as_ref(), tokenizer_json.as_deref())?;
    let tensors = by_name(path, tensors, wrapped)?;
    let config = config.ok_or(NoConfig::NoFile);
    Ok(Checkpoint {
        path: path.into(),
        container: Container::Safetensors,
        storage: text.as_ref().map(StorageFacts::of_safetensors).unwrap_or_default(),
        metadata: None,
        tokenizer_config,
        tokenizer_json,
        template_file,
        generation: generation_config.as_ref().map(generation).transpose()?.unwrap_or_default(),
        eos_ids: ids.eos,
        bos_id: ids.bos,
        tensors: match &config {
            Ok(config) => packed::gather(path, config, tensors)?,
            Err(_) => tensors,
        },
        config,
        files,
        manifest: OnceLock::new(),
    })
}

fn read_config(path: &Path) -> Result<Config, FileError> {
    Ok(Config::from_value(json::parse_python_file(path)?, &path.display().to_string())?)
}

impl StorageFacts {
    /// How safetensors checkpoints of the text model `config` store their values.
    pub fn of_safetensors(config: &Config) -> Self {
        let family = config.get("model_type").and_then(Value::as_str);
        let is_zero_centred = family.is_some_and(|family| ZERO_CENTRED.contains(&family));
        Self { norm_weight_offset: f32::from(u8::from(is_zero_centred)), ..Self::default() }
    }
}

/// Tensors by name; those of a wrapper's text model under the names they have without the wrapper.
fn by_name(
    path: &Path,
    tensors: Vec<StoredTensor>,
    wrapped: bool,
) -> Result<BTreeMap<String, StoredTensor>, FileError> {
    let mut out = BTreeMap::new();
    for tensor in tensors {
        let stored = tensor.stored_name();
        let plain = WRAPPED
            .iter()
            .filter(|_| wrapped)
            .find_map(|(prefix, plain)| stored.strip_prefix(prefix).map(|rest| format!("{plain}{rest}")));
        let tensor = match plain {
            Some(name) => tensor.renamed(&name),
            None => tensor,
        };
        let name = tensor.name().to_string();
        if out.insert(name.clone(), tensor).is_some() {
            let what = format!("two tensors are `{name}` of the text model");
            return Err(FileError::Damaged { path: path.into(), what });
        }
    }
    Ok(out)
}

fn generation(config: &Config) -> Result<Generation, FileError> {
    Ok(Generation {
        do_sample: config.opt_bool("do_sample")?,
        temperature: config.opt_f64("temperature")?,
        top_k: config.opt_usize("top_k")?,
        top_p: config.opt_f64("top_p")?,
        min_p: config.opt_f64("min_p")?,
        repetition_penalty: config.opt_f64("repetition_penalty")?,
    })
}

struct SpecialIds {
    eos: BTreeSet<u32>,
    bos: Option<u32>,
}

/// The ids that end and begin a text. Any of the files may know one that the others do not.
fn special_ids(
    config: Option<&Config>,
    generation: Option<&Config>,
    tokenizer_config: Option<&Config>,
    tokenizer_json: Option<&Path>,
) -> Result<SpecialIds, FileError> {
    let mut eos = BTreeSet::new();
    let mut bos = None;
    for config in [generation, config].into_iter().flatten() {
        eos.extend(config.ids("eos_token_id")?);
        bos = bos.or(config.ids("bos_token_id")?.first().copied());
    }
    if let Some(config) = tokenizer_config {
        let id = |key| token_text(config, key).and_then(|text| token_id(config, tokenizer_json, &text));
        eos.extend(id("eos_token"));
        bos = bos.or_else(|| id("bos_token"));
    }
    Ok(SpecialIds { eos, bos })
}

/// The text of a special token in tokenizer_config.json: a string, or an object with `content`.
pub(crate) fn token_text(config: &Config, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(String::from)
}

fn token_id(config: &Config, tokenizer_json: Option<&Path>, text: &str) -> Option<u32> {
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
    let listed = decoder.and_then(|map| map.iter().find(|(_, token)| token["content"] == text));
    if let Some(id) = listed.and_then(|(id, _)| id.parse().ok()) {
        return Some(id);
    }
    /// Only this of the file: the vocabulary is skipped.
    #[derive(serde::Deserialize)]
    struct Added {
        added_tokens: Vec<AddedToken>,
    }
    #[derive(serde::Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let file = std::fs::File::open(tokenizer_json?).ok()?;
    // A broken tokenizer.json is reported where the tokenizer is made.
    let added: Added = serde_json::from_reader(std::io::BufReader::new(file)).ok()?;
    added.added_tokens.into_iter().find(|token| token.content == text).map(|token| token.id)
}
