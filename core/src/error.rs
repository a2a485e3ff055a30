//! How a failure is described to whoever has to act on it.
//!
//! Each module has its own `thiserror` enum that carries the facts. At a boundary (a tool, the command line, the
//! engine protocol) it becomes a [`Failure`]: a kind that fixes the exit code, one message, and the next step.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who can mend a failure. Fixes the process exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The check itself ran and said no (exit 1).
    Check,
    /// The call is malformed: unknown flag, unknown plugin, wrong JSON shape (exit 2).
    Usage,
    /// A file or a value handed in is wrong (exit 3).
    Input,
    /// The machine lacks something: memory, a device, a permission, a compiler (exit 4).
    Environment,
    /// An engine process failed: crashed, hung, or answered outside the protocol (exit 5).
    Engine,
    /// A fault of crit itself (exit 70).
    Internal,
}

impl ErrorKind {
    /// The documented process exit code of this kind.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Check => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Environment => 4,
            Self::Engine => 5,
            Self::Internal => 70,
        }
    }
}

/// An error that knows its kind and, often, the next step.
pub trait Diagnose: std::error::Error {
    /// Who can mend it.
    fn kind(&self) -> ErrorKind;
    /// The next step, as an instruction.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// A failure as it crosses a boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Failure {
    /// Who can mend it.
    pub kind: ErrorKind,
    /// What failed and why, causes joined with ": ".
    pub message: String,
    /// The next step, as an instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of `kind` with `message` and no hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// The same failure with a next step.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl<E: Diagnose> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Self { kind: error.kind(), message, hint: error.hint() }
    }
}

/// The candidate of `known` closest to `given`, if it is near enough to be a slip of the keyboard.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (edit_distance(given, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().max(given.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The candidate of `known` that `given` is most likely a slip of: at most two characters off, a third of its length at
/// most, and the digits the same. For names whose digits are versions: another digit is another thing, not a slip.
pub fn likely_slip<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    known
        .into_iter()
        .map(|candidate| (edit_distance(given, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.chars().count().div_ceil(3)))
        .filter(|(_, candidate)| digits(given) == digits(candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_ignores_strangers() {
        let known = ["ngram_drafter", "kv_q8", "prefix_cache"];
        assert_eq!(nearest("ngram-drafter", known), Some("ngram_drafter"));
        assert_eq!(nearest("prefixcache", known), Some("prefix_cache"));
        assert_eq!(nearest("flash_attention", known), None);
    }

    #[test]
    fn another_version_is_no_slip() {
        let known = ["gemma3", "llama", "phi3", "qwen3"];
        assert_eq!(likely_slip("lama", known), Some("llama"));
        assert_eq!(likely_slip("qwne3", known), Some("qwen3"));
        for other in ["qwen2", "qwen", "gemma", "phi", "gpt2", "mamba", "opt", ""] {
            assert_eq!(likely_slip(other, known), None, "{other}");
        }
    }
}
