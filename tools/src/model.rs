//! What a checkpoint is: the facts people and agents ask for first.

use crate::error::ToolError;
use crit_core::files::Checkpoint;
use crit_core::model::Model;
use crit_core::model::program::StateKind;
use crit_core::text::{ChatTemplate, Tokenizer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Elements of a state row are counted at two bytes: the base engine's 16-bit cache.
const STATE_ELEMENT_BYTES: usize = 2;

/// A checkpoint in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelFacts {
    /// The file or folder.
    pub path: String,
    /// `safetensors`, `gguf`, `pytorch` or `onnx`.
    pub container: String,
    /// Architecture family: which step program it is.
    pub architecture: String,
    /// The config's own word.
    pub model_type: String,
    /// Weights in all.
    pub parameters: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of weights by element type.
    pub bytes_by_dtype: BTreeMap<String, u64>,
    /// Layers.
    pub layers: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Longest context the model was made for, tokens.
    pub context_tokens: u64,
    /// Bytes of KV cache a token takes at 16 bits an element, all layers.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent state a sequence holds whatever its length; 0 for a model without recurrent layers.
    pub state_bytes_per_sequence: u64,
    /// Attention windows of layers that see only so many last positions, tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub window_tokens: Vec<u64>,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
    /// Tokens that end a reply.
    pub eos_ids: Vec<u32>,
    /// The token that begins a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_id: Option<u32>,
    /// Whether there is a chat template.
    pub chat_template: bool,
    /// Whether there is a tokenizer.
    pub tokenizer: bool,
    /// The maker's sampling defaults.
    pub generation: GenerationDefaults,
}

/// The maker's sampling defaults; absent where the checkpoint does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GenerationDefaults {
    /// Whether to sample at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub do_sample: Option<bool>,
    /// Temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Most probable tokens kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// Probability mass kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Share of the best token's probability that a token needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
}

/// Opens `path` and states its facts. Reads headers, not weights.
///
/// # Errors
/// The files cannot be read or do not make a supported model.
pub fn inspect(path: &Path) -> Result<ModelFacts, ToolError> {
    facts(&open(path)?)
}

/// Opens a model file or folder and binds its program.
///
/// # Errors
/// The files cannot be read or do not make a supported model.
pub fn open(path: &Path) -> Result<Model, ToolError> {
    Ok(Model::open(path)?)
}

/// The facts of an open model.
///
/// # Errors
/// Its configuration cannot be read.
pub fn facts(model: &Model) -> Result<ModelFacts, ToolError> {
    let checkpoint: &Checkpoint = &model.checkpoint;
    let program = &model.program;
    let bytes: BTreeMap<String, u64> =
        checkpoint.bytes_by_form().into_iter().map(|(form, bytes)| (form.to_string(), bytes)).collect();
    let generation = checkpoint.generation();
    Ok(ModelFacts {
        path: checkpoint.path().display().to_string(),
        container: checkpoint.container().name().into(),
        architecture: program.arch.to_string(),
        model_type: checkpoint.model_type()?,
        parameters: checkpoint.parameters(),
        weight_bytes: bytes.values().sum(),
        bytes_by_dtype: bytes,
        layers: program.layers as u64,
        vocab: program.vocab as u64,
        context_tokens: program.max_context as u64,
        kv_bytes_per_token: program.kv_bytes_per_token(|dim| dim * STATE_ELEMENT_BYTES) as u64,
        state_bytes_per_sequence: program.slot_bytes(),
        window_tokens: windows(model),
        tied_head: checkpoint.tensor("lm_head.weight").is_none(),
        eos_ids: checkpoint.eos_ids().iter().copied().collect(),
        bos_id: checkpoint.bos_id(),
        chat_template: ChatTemplate::from_checkpoint(checkpoint)?.is_some(),
        tokenizer: Tokenizer::from_checkpoint(checkpoint).is_ok(),
        generation: GenerationDefaults {
            do_sample: generation.do_sample,
            temperature: generation.temperature,
            top_k: generation.top_k.map(|k| k as u64),
            top_p: generation.top_p,
            min_p: generation.min_p,
        },
    })
}

fn windows(model: &Model) -> Vec<u64> {
    let states = model.program.blocks.iter().flat_map(|block| &block.states);
    let found: std::collections::BTreeSet<u64> = states
        .filter_map(|state| match &state.kind {
            StateKind::Kv { window, .. } => window.map(|window| window as u64),
            StateKind::Recurrent { .. } => None,
        })
        .collect();
    found.into_iter().collect()
}
