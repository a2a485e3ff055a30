//! Logits of given token ids, for comparing an engine with another program's.

use crate::error::ToolError;
use crit_core::error::ErrorKind;
use crit_core::runtime::{Executor, StepBatch};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::path::Path;

/// Prefix of the tensors that hold token ids.
const IDS: &str = "input_ids";

/// One tensor of token ids, `[T]` or `[N, T]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdTensor {
    /// What follows `input_ids` in its name.
    pub suffix: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The ids, row-major.
    pub ids: Vec<u32>,
}

/// Reads every tensor named `input_ids*` of a safetensors file.
///
/// # Errors
/// The file cannot be read, has no such tensor, or one of another shape or type, or an id that is no token id.
pub fn read_ids(path: &Path) -> Result<Vec<IdTensor>, ToolError> {
    let bytes = std::fs::read(path).map_err(|error| {
        ToolError::io("read", path, &error).with_hint("give a safetensors file that holds token ids named `input_ids`")
    })?;
    let wrong = |what: String| ToolError::new(ErrorKind::Input, format!("{}: {what}", path.display()));
    let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("not a safetensors file: {error}")))?;
    let mut found = Vec::new();
    let mut names: Vec<&str> = file.names().into_iter().filter(|name| name.starts_with(IDS)).collect();
    names.sort_unstable();
    for name in names {
        let tensor = file.tensor(name).map_err(|error| wrong(format!("tensor `{name}`: {error}")))?;
        let shape = tensor.shape().to_vec();
        if shape.is_empty() || shape.len() > 2 || shape.contains(&0) {
            return Err(wrong(format!("tensor `{name}` has shape {shape:?}; it must be [T] or [N, T]")));
        }
        let ids = ids(&tensor).map_err(|what| wrong(format!("tensor `{name}` {what}")))?;
        found.push(IdTensor { suffix: name[IDS.len()..].to_string(), shape, ids });
    }
    if found.is_empty() {
        return Err(wrong(format!("no tensor named `{IDS}*`")).with_hint("name the token ids `input_ids`"));
    }
    Ok(found)
}

fn ids(tensor: &TensorView<'_>) -> Result<Vec<u32>, String> {
    let bytes = tensor.data();
    let wide = |width: usize, read: fn(&[u8]) -> i64| bytes.chunks_exact(width).map(read).collect::<Vec<i64>>();
    let values = match tensor.dtype() {
        Dtype::I64 => wide(8, |b| i64::from_le_bytes(b.try_into().unwrap_or_default())),
        Dtype::U32 => wide(4, |b| i64::from(u32::from_le_bytes(b.try_into().unwrap_or_default()))),
        Dtype::I32 => wide(4, |b| i64::from(i32::from_le_bytes(b.try_into().unwrap_or_default()))),
        other => return Err(format!("holds {other:?}; token ids are I64, I32 or U32")),
    };
    values.into_iter().map(|id| u32::try_from(id).map_err(|_| format!("holds {id}, which is no token id"))).collect()
}

/// Logits of every position of every sequence, computed from the first one on.
///
/// # Errors
/// A sequence is longer than the executor's, or a step fails.
pub fn compute(executor: &mut dyn Executor, tensor: &IdTensor) -> Result<Vec<f32>, ToolError> {
    let length = tensor.shape.last().copied().unwrap_or_default();
    let mut out = Vec::new();
    for ids in tensor.ids.chunks_exact(length.max(1)) {
        sequence(executor, ids, &mut out)?;
    }
    Ok(out)
}

fn sequence(executor: &mut dyn Executor, ids: &[u32], out: &mut Vec<f32>) -> Result<(), ToolError> {
    let info = executor.info();
    let (block_tokens, vocab) = (info.block_tokens, info.vocab);
    if ids.len() > info.max_context {
        let message = format!("a sequence has {} ids, the context is {}", ids.len(), info.max_context);
        return Err(ToolError::new(ErrorKind::Input, message).with_hint("give a longer --context or shorter sequences"));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(ToolError::new(ErrorKind::Input, format!("token id {id} is outside the vocabulary of {vocab}")));
    }
    let chunk = info.max_step_tokens.min(info.max_step_rows).max(1);
    let mut logits = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        let past = i * chunk;
        let blocks = (past + part.len()).div_ceil(block_tokens);
        let mut batch = StepBatch::default();
        batch.push(part, past as u32, (0..blocks as u32).collect(), 0, 0..part.len() as u32);
        executor.step(&batch, &mut logits)?;
        out.extend_from_slice(&logits);
    }
    Ok(())
}

/// Writes tensors `logits*`, f32, of the shape of the ids and the vocabulary.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, results: &[(IdTensor, Vec<f32>)], vocab: usize) -> Result<(), ToolError> {
    let raw: Vec<Vec<u8>> =
        results.iter().map(|(_, logits)| logits.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let mut views = Vec::new();
    for ((tensor, _), bytes) in results.iter().zip(&raw) {
        let shape: Vec<usize> = tensor.shape.iter().copied().chain([vocab]).collect();
        let view = TensorView::new(Dtype::F32, shape, bytes)
            .map_err(|error| ToolError::new(ErrorKind::Internal, format!("logits do not fit their shape: {error}")))?;
        views.push((format!("logits{}", tensor.suffix), view));
    }
    // Whole or not at all: a part of a file would be taken for logits.
    let part = path.with_extension("part");
    safetensors::serialize_to_file(views, None, &part)
        .map_err(|error| ToolError::new(ErrorKind::Environment, format!("cannot write {}: {error}", part.display())))?;
    std::fs::rename(&part, path).map_err(|error| ToolError::io("write", path, &error))
}
