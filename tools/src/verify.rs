//! Whether a checkpoint is sound: container, headers, offsets, shards, configuration, and that they make a model.
//!
//! Reads headers, not weights, and runs nothing that a file holds.

use crate::error::ToolError;
use crit_core::files::{Checkpoint, Container, FileError};
use crit_core::json::Config;
use crit_core::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// A sound checkpoint in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Verified {
    /// The file or folder.
    pub path: String,
    /// `safetensors`, `gguf`, `pytorch` or `onnx`.
    pub container: String,
    /// Tensors.
    pub tensors: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// What was checked: `container` always, `configuration` where there is one, `model` where the weights are a whole
    /// model's: every tensor its program needs is there in its shape, and none is left over.
    pub checked: Vec<String>,
    /// Why not all was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Checks the file or folder at `path`.
///
/// # Errors
/// The first fault.
pub fn verify(path: &Path) -> Result<Verified, ToolError> {
    check(path).map_err(|mut error| {
        let shown = path.display().to_string();
        if !error.message.contains(&shown) {
            error.message = format!("{shown}: {}", error.message);
        }
        error
    })
}

fn check(path: &Path) -> Result<Verified, ToolError> {
    let checkpoint = Checkpoint::open(path)?;
    let mut out = Verified {
        path: path.display().to_string(),
        container: checkpoint.container().name().into(),
        tensors: checkpoint.tensors().len() as u64,
        weight_bytes: checkpoint.tensors().map(|tensor| tensor.stored_bytes() as u64).sum(),
        checked: vec!["container".into()],
        note: None,
    };
    // A GGUF file carries its own; other weights may lie alone.
    let config = match (checkpoint.config(), checkpoint.container()) {
        (Err(FileError::Missing { .. }), kind) if kind != Container::Gguf => {
            out.note = Some("there is no config.json beside the weights".into());
            return Ok(out);
        }
        (config, _) => config?.text()?,
    };
    check_sizes(&config, &checkpoint)?;
    out.checked.push("configuration".into());
    if is_whole(path, &checkpoint) {
        Model::bind(checkpoint)?;
        out.checked.push("model".into());
    } else {
        out.note = Some("the file holds a part of a model's weights".into());
    }
    Ok(out)
}

/// That the configuration's first sizes can be those of these weights, whether or not all weights are here.
fn check_sizes(config: &Config, checkpoint: &Checkpoint) -> Result<(), ToolError> {
    if config.has("num_hidden_layers") {
        let layers = config.positive("num_hidden_layers")?;
        let tensors = checkpoint.tensors().len();
        if layers > tensors {
            let layer = |tensor: &str| tensor.strip_prefix("model.layers.")?.split('.').next()?.parse::<usize>().ok();
            let there: BTreeSet<usize> = checkpoint.tensors().filter_map(|tensor| layer(tensor.name())).collect();
            let missing = (0..layers).find(|layer| !there.contains(layer)).unwrap_or(layers);
            let what = format!(
                "its configuration states {layers} layers and it has {tensors} tensors; the first that is missing is `model.layers.{missing}.input_layernorm.weight`"
            );
            return Err(FileError::Damaged { path: checkpoint.path().into(), what }.into());
        }
    }
    for key in ["hidden_size", "num_attention_heads"] {
        if config.has(key) && config.get(key).is_some_and(|value| !value.is_array()) {
            config.positive(key)?;
        }
    }
    Ok(())
}

/// Whether the weights are meant to be a whole model's: all but a single file with others beside it, and files without
/// an embedding.
fn is_whole(path: &Path, checkpoint: &Checkpoint) -> bool {
    if path.is_dir() || path.to_string_lossy().ends_with(".index.json") {
        return true;
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let beside_index = std::fs::read_dir(folder).is_ok_and(|entries| {
        entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().ends_with(".index.json"))
    });
    match checkpoint.container() {
        Container::Gguf => {
            ["model.embed_tokens.weight", "token_embd.weight"].iter().any(|name| checkpoint.tensor(name).is_some())
        }
        _ => !beside_index,
    }
}
