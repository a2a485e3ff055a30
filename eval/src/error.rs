//! What can go wrong while measuring.

use crit_core::error::{Diagnose, ErrorKind, Failure};
use std::path::PathBuf;

/// Why a measurement did not come about.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The engine or its reference failed.
    #[error("{who} failed while {doing}: {failure}")]
    Engine {
        /// `candidate` or `reference`.
        who: String,
        /// What was being measured.
        doing: String,
        /// What it said.
        failure: Failure,
    },
    /// The engine answered something that cannot be right.
    #[error("{who} answered outside the protocol while {doing}: {what}")]
    Protocol {
        /// `candidate` or `reference`.
        who: String,
        /// What was being measured.
        doing: String,
        /// What was wrong.
        what: String,
    },
    /// The server could not be reached or broke off.
    #[error("{address}: {what}")]
    Http {
        /// Host and port.
        address: String,
        /// What happened.
        what: String,
    },
    /// The server answered with an error status.
    #[error("{address}{path} answered {status}: {body}")]
    Status {
        /// Host and port.
        address: String,
        /// Path asked for.
        path: String,
        /// HTTP status.
        status: u16,
        /// Start of the answer's body.
        body: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The request makes no sense.
    #[error("{what}")]
    Request {
        /// What is wrong with it.
        what: String,
        /// The next step.
        hint: String,
    },
    /// The machine lacks what a measurement needs.
    #[error("{what}")]
    Machine {
        /// What is missing.
        what: String,
        /// The next step.
        hint: String,
    },
}

impl Diagnose for EvalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Engine { failure, .. } => failure.kind,
            Self::Protocol { .. } | Self::Http { .. } | Self::Status { .. } => ErrorKind::Engine,
            Self::File { .. } | Self::Machine { .. } => ErrorKind::Environment,
            Self::Request { .. } => ErrorKind::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Engine { failure, .. } => failure.hint.clone(),
            Self::Protocol { who, .. } => {
                Some(format!("mend the {who}; `crit plugins test` runs the checks of the protocol one by one"))
            }
            Self::Http { .. } => Some("see that the server runs and `/health` answers, then measure again".into()),
            Self::Status { .. } => Some("the server's log names the request that failed".into()),
            Self::File { .. } => Some("see that the folder exists, is writable and has space".into()),
            Self::Request { hint, .. } | Self::Machine { hint, .. } => Some(hint.clone()),
        }
    }
}

/// Names the file of an IO error.
pub(crate) fn file_error(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> EvalError {
    let path = path.into();
    move |source| EvalError::File { path, source }
}
