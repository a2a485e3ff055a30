//! Why a server does not start, or ends.

use crit_core::error::{Diagnose, ErrorKind, Failure};
use std::net::{IpAddr, SocketAddr};

/// Why a server does not start, or ends.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ServeError {
    /// An address other machines can reach, without permission for it.
    #[error("refusing to listen on {0}: other machines could reach it")]
    RemoteAddress(IpAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {reason}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// The engine did not come up at the start.
    #[error("the engine did not start: {0}")]
    Launch(Failure),
    /// The engine was lost and could not be brought back.
    #[error("the engine was lost {attempts} times in a row, the last time because {reason}")]
    EngineLost {
        /// Restarts tried.
        attempts: u32,
        /// Why it was lost last.
        reason: String,
    },
    /// The server was stopped before its engine was up.
    #[error("the server was stopped before its engine was ready")]
    Stopped,
    /// A thread or a runtime could not be had, or the listener failed.
    #[error("cannot run the server: {0}")]
    Run(String),
}

impl Diagnose for ServeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::RemoteAddress(_) => ErrorKind::Usage,
            Self::Bind { .. } | Self::Run(_) => ErrorKind::Environment,
            Self::Launch(failure) => failure.kind,
            Self::EngineLost { .. } => ErrorKind::Engine,
            Self::Stopped => ErrorKind::Check,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::RemoteAddress(_) => {
                Some("listen on 127.0.0.1, or allow remote clients explicitly; there is no access control".into())
            }
            Self::Bind { .. } => Some("choose another port, or port 0 for a free one".into()),
            Self::Launch(failure) => failure.hint.clone(),
            Self::EngineLost { .. } => Some("look at the engine's log for what ended it".into()),
            Self::Stopped | Self::Run(_) => None,
        }
    }
}
