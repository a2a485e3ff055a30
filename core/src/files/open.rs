//! From a path to a checkpoint: what lies there, which files belong to it, and what they say.

use super::checkpoint::{Checkpoint, Container, Generation, NoConfig, StorageFacts};
use super::error::FileError;
use super::tensor::StoredTensor;
use super::{index, onnx, open_gguf, packed, pytorch, safetensors};
use crate::json::{self, Config};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Tensors, and the files they lie in.
type Opened = (Vec<StoredTensor>, Vec<PathBuf>);

/// A kind of file with weights beside JSON files.
struct Kind {
    ending: &'static str,
    container: Container,
    open: fn(&Path) -> Result<Opened, FileError>,
}

/// All kinds, sorted by ending.
const KINDS: &[Kind] = &[
    Kind { ending: ".bin", container: Container::PyTorch, open: |file| one(file, pytorch::open_file) },
    Kind { ending: ".bin.index.json", container: Container::PyTorch, open: |file| shards(file, pytorch::open_file) },
    Kind { ending: ".onnx", container: Container::Onnx, open: onnx::open_file },
    Kind { ending: ".pt", container: Container::PyTorch, open: |file| one(file, pytorch::open_file) },
    Kind { ending: ".pth", container: Container::PyTorch, open: |file| one(file, pytorch::open_file) },
    Kind { ending: ".safetensors", container: Container::Safetensors, open: |file| one(file, safetensors::open_file) },
    Kind {
        ending: ".safetensors.index.json",
        container: Container::Safetensors,
        open: |file| shards(file, safetensors::open_file),
    },
];

fn one(file: &Path, open: fn(&Path) -> Result<Vec<StoredTensor>, FileError>) -> Result<Opened, FileError> {
    Ok((open(file)?, vec![file.into()]))
}

fn shards(file: &Path, open: fn(&Path) -> Result<Vec<StoredTensor>, FileError>) -> Result<Opened, FileError> {
    let (tensors, mut files) = index::open(file, open)?;
    files.push(file.into());
    Ok((tensors, files))
}

/// Names that mean the model of a folder. The first that is there counts, so that safetensors come before the pickles
/// they were made from.
const MEANT: &[&str] = &[
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model.pt",
    "model.onnx",
    "onnx/model.onnx",
];

/// Endings of files that are the model where there is one such file. Safetensors beside a GGUF file are something else
/// than its weights.
const ENDINGS: &[&[&str]] = &[&[".gguf"], &[".safetensors"], &[".bin", ".pt", ".pth"], &[".onnx"]];

/// Files of training programs that end as weights do.
const NO_WEIGHTS: &[&str] = &["optimizer", "rng_state", "scaler", "scheduler", "training_args"];

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
    if let Some(name) = MEANT.iter().find(|name| folder.join(name).is_file()) {
        return open_file(folder, &folder.join(name));
    }
    let names = list(folder)?;
    for endings in ENDINGS {
        let is_model = |name: &&String| {
            endings.iter().any(|ending| name.ends_with(ending)) && !NO_WEIGHTS.iter().any(|no| name.starts_with(no))
        };
        match names.iter().filter(is_model).collect::<Vec<_>>()[..] {
            [] => {}
            [one] => return open_file(folder, &folder.join(one)),
            ref several => {
                let shown: Vec<_> = several.iter().take(8).map(|name| name.as_str()).collect();
                let what = format!("{} files could be meant; give one of them: {}", several.len(), shown.join(", "));
                return Err(FileError::NoModel { path: folder.into(), what });
            }
        }
    }
    let what = "no .safetensors, .gguf, .bin, .pt, .pth and no .onnx file in it".into();
    Err(FileError::NoModel { path: folder.into(), what })
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
    if name.ends_with(".gguf") {
        return open_gguf::open(path, file);
    }
    let Some(kind) = KINDS.iter().find(|kind| name.ends_with(kind.ending)) else {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.ending).chain([".gguf"]).collect();
        let what = format!("`{name}` is no file of weights: those end in {}", known.join(", "));
        return Err(FileError::NoModel { path: path.into(), what });
    };
    let folder = if path.is_dir() { path } else { file.parent().unwrap_or(Path::new(".")) };
    assemble(path, folder, kind.container, (kind.open)(file)?)
}

/// The checkpoint of tensors and the JSON files in `folder`.
fn assemble(
    path: &Path,
    folder: &Path,
    container: Container,
    (tensors, mut files): Opened,
) -> Result<Checkpoint, FileError> {
    let mut beside = |name: &str| {
        let found = Some(folder.join(name)).filter(|path| path.is_file());
        files.extend(found.clone());
        found
    };
    let config = beside("config.json").map(|path| read_config(&path)).transpose()?;
    let config = match config {
        Some(config) if !packed::is_stated(&config)? => Some(with_settings_of_their_own(config, &mut beside)?),
        config => config,
    };
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
        container,
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

/// The configuration with the quantisation settings that a tool wrote into a file of their own.
fn with_settings_of_their_own(
    config: Config,
    beside: &mut impl FnMut(&str) -> Option<PathBuf>,
) -> Result<Config, FileError> {
    let (key, method, path) = match (beside("hf_quant_config.json"), beside("quantize_config.json")) {
        (Some(path), _) => (Some("quantization"), "modelopt", path),
        (None, Some(path)) => (None, "gptq", path),
        (None, None) => return Ok(config),
    };
    let own = read_config(&path)?;
    let own = match key {
        Some(key) => own.opt_object(key)?.unwrap_or(own),
        None => own,
    };
    let mut settings: Map<String, Value> = own.map().clone();
    settings.entry("quant_method").or_insert(method.into());
    let mut map = config.map().clone();
    map.insert("quantization_config".into(), settings.into());
    Ok(Config::from_map(map, config.origin()))
}

impl StorageFacts {
    /// How checkpoints under Hugging Face names of the text model `config` store their values.
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
