//! The values of one tensor of a checkpoint.

use crate::error::ToolError;
use crit_core::error::{ErrorKind, nearest};
use crit_core::files::Checkpoint;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A tensor in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Dequantised {
    /// Its name.
    pub tensor: String,
    /// The file written.
    pub out: String,
    /// Its shape, PyTorch order.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub stored_as: String,
    /// Bytes it takes as stored.
    pub stored_bytes: u64,
    /// The digest of its values, f32, little-endian, row by row.
    pub sha256_f32le: String,
}

/// Writes the values of the tensor `name` of the checkpoint at `model` to the safetensors file `out`, as f32, rows
/// in the order of Hugging Face checkpoints.
///
/// # Errors
/// The checkpoint cannot be read or has no such tensor, or the file cannot be written.
pub fn dequant(model: &Path, name: &str, out: &Path) -> Result<Dequantised, ToolError> {
    let checkpoint = Checkpoint::open(model)?;
    let Some(tensor) = checkpoint.tensor(name) else {
        let error = ToolError::new(ErrorKind::Input, format!("{} has no tensor `{name}`", model.display()));
        let near = nearest(name, checkpoint.tensors().map(|tensor| tensor.name()));
        return Err(match near {
            Some(near) => error.with_hint(format!("did you mean `{near}`?")),
            None => error.with_hint("names are Hugging Face's, such as model.layers.0.mlp.down_proj.weight"),
        });
    };
    let bytes: Vec<u8> =
        checkpoint.values_in_plain_order(tensor)?.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, tensor.shape().to_vec(), &bytes)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("values do not fit their shape: {error}")))?;
    // Whole or not at all.
    let part = out.with_extension("part");
    safetensors::serialize_to_file([(name, view)], None, &part)
        .map_err(|error| ToolError::new(ErrorKind::Environment, format!("cannot write {}: {error}", part.display())))?;
    std::fs::rename(&part, out).map_err(|error| ToolError::io("write", out, &error))?;
    Ok(Dequantised {
        tensor: name.into(),
        out: out.display().to_string(),
        shape: tensor.shape().iter().map(|dim| *dim as u64).collect(),
        stored_as: tensor.stored_as().into(),
        stored_bytes: tensor.stored_bytes() as u64,
        sha256_f32le: crit_core::digest::Digest::of(&bytes).to_string(),
    })
}
