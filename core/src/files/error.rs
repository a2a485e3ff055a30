//! What can be wrong with a model file, and what to do about it.

use crate::error::{Diagnose, ErrorKind};
use crate::json::JsonError;
use std::path::PathBuf;

/// Why a model file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Nothing at the path.
    #[error("there is nothing at {}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// A path without a model that can be read.
    #[error("{} holds no model that can be read: {what}", path.display())]
    NoModel {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: String,
    },
    /// A file that the system does not let us read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that breaks the rules of its format.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A sound file with something in it that is not supported.
    #[error("{}: {what} is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What could stand there.
        supported: String,
    },
    /// A file that is needed besides the weights.
    #[error("{} has no {what}", path.display())]
    Missing {
        /// The model.
        path: PathBuf,
        /// What is missing.
        what: String,
        /// The next step.
        hint: String,
    },
    /// A fault in one of the JSON files, or a key with a wrong value.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A row outside the tensor.
    #[error("tensor `{name}` has {rows} rows, asked for {asked}")]
    Rows {
        /// The tensor.
        name: String,
        /// Rows it has.
        rows: usize,
        /// Row asked for.
        asked: usize,
    },
    /// A buffer of the wrong size.
    #[error("rows of tensor `{name}` have {needed} values, the buffer has {given}")]
    Buffer {
        /// The tensor.
        name: String,
        /// Values the rows have.
        needed: usize,
        /// Values the buffer takes.
        given: usize,
    },
    /// Sizes that do not describe a tensor.
    #[error("tensor `{name}` of type {dtype} and shape {shape:?}: {what}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: &'static str,
        /// Its dimensions.
        shape: Vec<usize>,
        /// What does not fit.
        what: String,
    },
}

impl Diagnose for FileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Rows { .. } | Self::Buffer { .. } => ErrorKind::Internal,
            _ => ErrorKind::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { .. } => {
                Some("give the path of a model folder, a .safetensors file or a .gguf file".into())
            }
            Self::NoModel { .. } => Some(
                "give a folder with config.json and model.safetensors (or its index and shards), or a .gguf file"
                    .into(),
            ),
            Self::Io { path, .. } => Some(format!("check the permissions of {}", path.display())),
            Self::Damaged { path, .. } => {
                Some(format!("download {} again and compare its size and checksum with the source's", path.display()))
            }
            Self::Unsupported { .. } => {
                Some("use a checkpoint in one of the supported forms, or convert this one".into())
            }
            Self::Missing { hint, .. } => Some(hint.clone()),
            Self::Shape { .. } => Some("download the file again, or tell its maker".into()),
            Self::Json(error) => error.hint(),
            Self::Rows { .. } | Self::Buffer { .. } => None,
        }
    }
}
