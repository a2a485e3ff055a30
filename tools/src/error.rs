//! A tool's failure: the facts of [`Failure`] and the call that mends it.

use crate::next::Next;
use crit_core::error::{ErrorKind, Failure};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a tool did not answer with its `Output`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ToolError {
    /// Who can mend it.
    pub kind: ErrorKind,
    /// What failed and why.
    pub message: String,
    /// The next step, as an instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The call to make next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Box<Next>>,
}

impl ToolError {
    /// A failure of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, next: None }
    }

    /// The same failure with the next step in words.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure with the next call.
    pub fn with_next(mut self, next: Next) -> Self {
        self.next = Some(Box::new(next));
        self
    }

    /// A file operation that failed.
    pub fn io(what: impl fmt::Display, path: &std::path::Path, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::Input,
            _ => ErrorKind::Environment,
        };
        let hint = match kind {
            ErrorKind::Input => format!("check that {} exists", path.display()),
            _ => format!("check that {} may be read and written, and that there is room", path.display()),
        };
        Self::new(kind, format!("cannot {what} {}: {error}", path.display())).with_hint(hint)
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ToolError {}

impl<E> From<E> for ToolError
where
    Failure: From<E>,
{
    fn from(error: E) -> Self {
        let failure = Failure::from(error);
        Self { kind: failure.kind, message: failure.message, hint: failure.hint, next: None }
    }
}
