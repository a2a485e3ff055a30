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
        Self { kind, message: bounded(message.into()), hint: None, next: None }
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
        Self { kind: failure.kind, message: bounded(failure.message), hint: failure.hint.map(bounded), next: None }
    }
}

/// Characters kept of each end of a text that is longer than both: an argument may be quoted in it, and the model that
/// reads the answer pays for every word.
const KEPT_CHARS: usize = 2000;

fn bounded(text: String) -> String {
    let length = text.chars().count();
    if length <= 2 * KEPT_CHARS {
        return text;
    }
    let start: String = text.chars().take(KEPT_CHARS).collect();
    let end: String = text.chars().skip(length - KEPT_CHARS).collect();
    format!("{start} … {} characters left out … {end}", length - 2 * KEPT_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_keeps_both_ends() {
        let long = format!("begin{}end", "é".repeat(100_000));
        let error = ToolError::new(ErrorKind::Usage, long);
        assert!(error.message.starts_with("beginé") && error.message.ends_with("éend"));
        assert!(error.message.contains("96008 characters left out"), "{} bytes", error.message.len());
        assert_eq!(ToolError::new(ErrorKind::Usage, "short").message, "short");
    }
}
