//! Why a checkpoint could not be written.

use crate::error::{Diagnose, ErrorKind};
use crate::files::FileError;
use crate::json::JsonError;
use crate::model::ModelError;
use crate::model::arch::ArchError;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Something is where the result should go.
    #[error("{} is there already", path.display())]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// A file operation that failed.
    #[error("{} cannot be written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A model that the wanted format cannot hold, or that nothing is known about writing.
    #[error("{what}")]
    Unsupported {
        /// What, and what could stand there.
        what: String,
        /// The next step.
        hint: String,
    },
    /// The source's files.
    #[error(transparent)]
    File(#[from] FileError),
    /// A configuration file.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A configuration without a program.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The source's model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A worker thread that panicked.
    #[error("a worker failed while writing")]
    Worker,
}

impl ExportError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(super) fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), hint: hint.into() }
    }
}

impl Diagnose for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::Usage,
            Self::Unsupported { .. } => ErrorKind::Input,
            Self::Io { .. } => ErrorKind::Environment,
            Self::File(error) => error.kind(),
            Self::Json(error) => error.kind(),
            Self::Arch(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::Worker => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { .. } => Some("give another --out, or remove what is there".into()),
            Self::Unsupported { hint, .. } => Some(hint.clone()),
            Self::Io { .. } => Some("check the space and the permissions there".into()),
            Self::File(error) => error.hint(),
            Self::Json(error) => error.hint(),
            Self::Arch(error) => error.hint(),
            Self::Model(error) => error.hint(),
            Self::Worker => None,
        }
    }
}
