//! Why a request gets no answer, in no dialect's words. A dialect turns it into its own error body; the status is the
//! same in all of them.

use crate::engine::EngineFault;
use crate::engine::live::is_overload;
use axum::http::StatusCode;
use crit_core::error::ErrorKind;
use std::time::Duration;

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A value of the request is wrong.
    #[error("{} {message}", if path.is_empty() { "the request body".into() } else { format!("`{path}`") })]
    Invalid {
        /// JSON path of the value.
        path: String,
        /// What is wrong, read after the path.
        message: String,
    },
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    NotJson(String),
    /// The body is too large.
    #[error("the request body is larger than {limit_bytes} bytes")]
    BodyTooLarge {
        /// Most bytes taken.
        limit_bytes: usize,
    },
    /// The prompt leaves no room in the context.
    #[error(
        "the prompt is too long: {prompt_tokens} tokens and at least 1 to generate need {}, the context holds {context}",
        prompt_tokens + 1
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Longest sequence.
        context: u32,
    },
    /// A model that is not served here.
    #[error("model `{asked}` is not served here; served: {served}")]
    UnknownModel {
        /// What was asked for.
        asked: String,
        /// What there is.
        served: String,
    },
    /// A path that does not exist.
    #[error("no such route: {0}")]
    NoRoute(String),
    /// A method the route does not have.
    #[error("method {method} is not allowed on {path}")]
    NoMethod {
        /// The method.
        method: String,
        /// The route.
        path: String,
    },
    /// A `Host` header that is not this machine's.
    #[error("host `{0}` is refused: this server listens on loopback for this machine only")]
    ForeignHost(String),
    /// Too much is running and waiting.
    #[error("the server is full: {0}; try again shortly")]
    Overloaded(String),
    /// The engine is not up.
    #[error("the engine is not ready: {reason}")]
    NotReady {
        /// Why.
        reason: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// The engine did not finish the request.
    #[error(transparent)]
    Engine(#[from] EngineFault),
    /// A fault of the server itself.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Problem {
    /// A wrong value at `path`.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), message: message.into() }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } | Self::NotJson(_) | Self::TooLong { .. } => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownModel { .. } | Self::NoRoute(_) => StatusCode::NOT_FOUND,
            Self::NoMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::ForeignHost(_) => StatusCode::FORBIDDEN,
            Self::Overloaded(_) | Self::NotReady { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Engine(fault) => fault_status(fault),
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// When the same request is worth sending again, if it is.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NotReady { retry_after, .. } => Some(*retry_after),
            Self::Overloaded(_) | Self::Engine(EngineFault::Lost(_) | EngineFault::ShuttingDown) => {
                Some(Duration::from_secs(1))
            }
            Self::Engine(EngineFault::Refused(failure)) if is_overload(failure) => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// A word for programs, the same in every dialect that has room for one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_value",
            Self::NotJson(_) => "invalid_json",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::TooLong { .. } => "context_length_exceeded",
            Self::UnknownModel { .. } => "model_not_found",
            Self::NoRoute(_) => "not_found",
            Self::NoMethod { .. } => "method_not_allowed",
            Self::ForeignHost(_) => "foreign_host",
            Self::Overloaded(_) => "overloaded",
            Self::NotReady { .. } => "engine_not_ready",
            Self::Engine(EngineFault::Lost(_)) => "engine_lost",
            Self::Engine(EngineFault::Refused(_)) => "engine_refused",
            Self::Engine(EngineFault::SlowClient) => "client_too_slow",
            Self::Engine(EngineFault::ShuttingDown) => "shutting_down",
            Self::Internal(_) => "internal_error",
        }
    }
}

fn fault_status(fault: &EngineFault) -> StatusCode {
    match fault {
        EngineFault::Lost(_) => StatusCode::BAD_GATEWAY,
        EngineFault::Refused(failure) => match failure.kind {
            ErrorKind::Usage | ErrorKind::Input => StatusCode::BAD_REQUEST,
            ErrorKind::Environment => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Check | ErrorKind::Engine | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        },
        EngineFault::SlowClient => StatusCode::REQUEST_TIMEOUT,
        EngineFault::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
    }
}
