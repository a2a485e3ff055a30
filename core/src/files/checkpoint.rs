//! A checkpoint: whatever a path leads to, under one set of names.

use super::dtype::DType;
use super::error::FileError;
use super::gguf::Metadata;
use super::tensor::StoredTensor;
use crate::digest::Digest;
use crate::export::{SYNTHETIC_CONFIG_KEY, SYNTHETIC_METADATA_KEY};
use crate::json::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The kinds of container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// One safetensors file or several under an index, with JSON files beside them.
    Safetensors,
    /// A GGUF file, with everything inside.
    Gguf,
    /// An ONNX graph with its data, and JSON files beside it.
    Onnx,
    /// Pickled state dicts, one or several under an index, with JSON files beside them.
    PyTorch,
}

impl Container {
    /// All kinds, sorted by name.
    pub const ALL: &[Self] = &[Self::Gguf, Self::Onnx, Self::PyTorch, Self::Safetensors];

    /// Which files are of it, and what of them is read.
    pub fn about(self) -> &'static str {
        match self {
            Self::Gguf => {
                "`.gguf`, versions 2 and 3, split ones too; configuration, tokenizer and template come from its metadata"
            }
            Self::Onnx => {
                "`.onnx` as Optimum exports it, data inside or beside it; weights of MatMul, Gemm and MatMulNBits under their modules' names"
            }
            Self::PyTorch => {
                "`.bin`, `.pt`, `.pth`: zip archives and the older pickles in a row, `.bin.index.json` with shards; nothing in them is run"
            }
            Self::Safetensors => {
                "`.safetensors`, `.safetensors.index.json` with shards; the index must name what the shards hold"
            }
        }
    }

    /// Its name in the field.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Onnx => "onnx",
            Self::PyTorch => "pytorch",
        }
    }
}

/// Where the stored values differ from what the names promise.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StorageFacts {
    /// Whether the rows of the query and key projections are stored for rotating neighbouring pairs, where the model
    /// itself rotates halves. Rows are then to be used with interleaved rotation, or put back.
    pub rope_interleaved_qk: bool,
    /// To be added to a stored norm weight to get the factor: 1 where the family stores it around zero.
    pub norm_weight_offset: f32,
    /// Whether value heads of delta nets are stored in rounds over the key heads, where the model itself has those of one
    /// key head side by side.
    pub delta_heads_tiled: bool,
    /// Whether the decay parameter of recurrences is stored as the rate -exp(A) instead of A.
    pub decay_as_rate: bool,
}

/// The sampling defaults of the checkpoint's makers.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Generation {
    /// Whether to sample at all; greedy if it says no.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f64>,
    /// Most probable tokens kept (0: all).
    pub top_k: Option<usize>,
    /// Probability mass kept.
    pub top_p: Option<f64>,
    /// Share of the best token's probability that a token needs.
    pub min_p: Option<f64>,
    /// Divisor of the logits of tokens already seen.
    pub repetition_penalty: Option<f64>,
}

/// A file of a checkpoint as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The digest of its content.
    pub sha256: Digest,
}

/// The content of a checkpoint: every file that decides what the model computes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Manifest {
    /// The files by name.
    pub files: Vec<FileEntry>,
    /// The digest over names, sizes and digests of all of them.
    pub digest: Digest,
}

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) path: PathBuf,
    pub(super) container: Container,
    pub(super) config: Result<Config, NoConfig>,
    pub(super) metadata: Option<Metadata>,
    pub(super) tokenizer_config: Option<Config>,
    pub(super) tokenizer_json: Option<PathBuf>,
    pub(super) template_file: Option<PathBuf>,
    pub(super) generation: Generation,
    pub(super) eos_ids: BTreeSet<u32>,
    pub(super) bos_id: Option<u32>,
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    pub(super) storage: StorageFacts,
    pub(super) files: Vec<PathBuf>,
    pub(super) manifest: OnceLock<Manifest>,
}

/// Why a checkpoint has no configuration.
#[derive(Debug)]
pub(super) enum NoConfig {
    /// Weights without config.json.
    NoFile,
    /// A GGUF file that does not name its architecture.
    Unnamed,
    /// A GGUF file of an architecture that is not known.
    Unknown(String),
}

impl NoConfig {
    fn error(&self, path: &Path) -> FileError {
        let missing =
            |what: &str, hint: &str| FileError::Missing { path: path.into(), what: what.into(), hint: hint.into() };
        match self {
            Self::NoFile => missing("config.json", "put the checkpoint's config.json beside its weights"),
            Self::Unnamed => {
                missing("architecture: its metadata lack the string general.architecture", "convert the model again")
            }
            Self::Unknown(name) => {
                let supported: Vec<_> = super::gguf::arch::ARCHS.iter().map(|arch| arch.name).collect();
                let what = format!("the architecture `{name}`");
                FileError::Unsupported { path: path.into(), what, supported: supported.join(" ") }
            }
        }
    }
}

/// The weights of the output head.
#[derive(Clone, Debug)]
pub enum Head {
    /// A tensor of its own.
    Own(StoredTensor),
    /// The embedding's.
    Tied(StoredTensor),
}

impl Checkpoint {
    /// Opens what `path` leads to: a folder with a model, the file of its weights (`.safetensors`, `.gguf`, `.bin`,
    /// `.pt`, `.pth`, `.onnx`), or the index of a sharded checkpoint.
    ///
    /// # Errors
    /// A path without a model, or files that break the rules of their formats.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        super::open::open(path)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of container.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The configuration in Hugging Face keys, as in config.json; for GGUF made from the metadata.
    /// [`Config::text`] descends to the text model of a wrapper.
    ///
    /// # Errors
    /// There is none: weights without config.json, or a GGUF file of an architecture that is not known.
    pub fn config(&self) -> Result<&Config, FileError> {
        self.config.as_ref().map_err(|none| none.error(&self.path))
    }

    /// The family of the text model: its `model_type`.
    ///
    /// # Errors
    /// No configuration, or one that does not say.
    pub fn model_type(&self) -> Result<String, FileError> {
        Ok(self.config()?.text()?.str("model_type")?.to_string())
    }

    /// The sampling defaults of its makers.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The tokens that end a reply; stop on any.
    pub fn eos_ids(&self) -> &BTreeSet<u32> {
        &self.eos_ids
    }

    /// The token that begins a text, for models that have one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The tensor with this Hugging Face name.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// All tensors by name. Tensors of a GGUF file without a Hugging Face name keep their own, such as
    /// `rope_freqs.weight`.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &StoredTensor> {
        self.tensors.values()
    }

    /// Whether its values are random, written for measuring speed: no quality can be measured on it.
    pub fn is_synthetic(&self) -> bool {
        let stated = self.config.as_ref().ok().and_then(|config| config.get(SYNTHETIC_CONFIG_KEY));
        let marked = self.metadata.as_ref().and_then(|metadata| metadata.bool(SYNTHETIC_METADATA_KEY));
        stated.and_then(serde_json::Value::as_bool).or(marked).unwrap_or(false)
    }

    /// The output head `head`, or the embedding `embedding` where the two are tied.
    ///
    /// Whether they are tied is decided by the tensors: a head that is there is used. A configuration that says
    /// "not tied" without a head there is an error.
    ///
    /// # Errors
    /// Neither tensor, or no head against the configuration's word.
    pub fn head(&self, head: &str, embedding: &str) -> Result<Head, FileError> {
        let tied = self.config()?.text()?.opt_bool("tie_word_embeddings")?;
        if let Some(own) = self.tensor(head) {
            if tied == Some(true) {
                tracing::warn!(head, "the configuration ties the output head, the file has one of its own: using that");
            }
            return Ok(Head::Own(own.clone()));
        }
        if tied == Some(false) {
            return Err(FileError::Missing {
                path: self.path.clone(),
                what: format!("tensor `{head}`, and its configuration says that the output head is not tied"),
                hint: "get the missing weights; if the head is tied, set tie_word_embeddings to true".into(),
            });
        }
        self.tensor(embedding).cloned().map(Head::Tied).ok_or_else(|| FileError::Missing {
            path: self.path.clone(),
            what: format!("tensor `{embedding}`"),
            hint: "get the complete checkpoint".into(),
        })
    }

    /// What is to be known about the stored values.
    pub fn storage(&self) -> &StorageFacts {
        &self.storage
    }

    /// Weights in all.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|tensor| tensor.elems() as u64).sum()
    }

    /// Bytes of weights by element type.
    pub fn bytes_by_dtype(&self) -> BTreeMap<DType, u64> {
        let mut out = BTreeMap::new();
        for tensor in self.tensors() {
            *out.entry(tensor.dtype()).or_default() += tensor.stored_bytes() as u64;
        }
        out
    }

    /// Bytes of weights by how they are stored: element types, and formats of packed weights.
    pub fn bytes_by_form(&self) -> BTreeMap<&'static str, u64> {
        let mut out = BTreeMap::new();
        for tensor in self.tensors() {
            *out.entry(tensor.stored_as()).or_default() += tensor.stored_bytes() as u64;
        }
        out
    }

    /// The metadata of a GGUF file.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// tokenizer_config.json, where there is one.
    pub fn tokenizer_config(&self) -> Option<&Config> {
        self.tokenizer_config.as_ref()
    }

    /// The path of tokenizer.json, where there is one.
    pub fn tokenizer_json(&self) -> Option<&Path> {
        self.tokenizer_json.as_deref()
    }

    /// The path of chat_template.jinja, where there is one.
    pub fn template_file(&self) -> Option<&Path> {
        self.template_file.as_deref()
    }

    /// The files it consists of, with sizes and digests. Reads all of them on the first call.
    ///
    /// # Errors
    /// A file that can no longer be read.
    pub fn manifest(&self) -> Result<&Manifest, FileError> {
        if let Some(manifest) = self.manifest.get() {
            return Ok(manifest);
        }
        let made = make_manifest(&self.files)?;
        Ok(self.manifest.get_or_init(|| made))
    }
}

fn make_manifest(paths: &[PathBuf]) -> Result<Manifest, FileError> {
    let mut files = paths.iter().map(|path| file_entry(path)).collect::<Result<Vec<_>, _>>()?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let sizes: Vec<_> = files.iter().map(|file| file.bytes.to_le_bytes()).collect();
    let parts = files.iter().zip(&sizes).flat_map(|(file, bytes)| [file.name.as_bytes(), bytes, file.sha256.bytes()]);
    let digest = Digest::of_parts(parts);
    Ok(Manifest { files, digest })
}

fn file_entry(path: &Path) -> Result<FileEntry, FileError> {
    let io = |source| FileError::Io { path: path.into(), source };
    let file = std::fs::File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(FileEntry { name, bytes, sha256: Digest::of_reader(file).map_err(io)? })
}
