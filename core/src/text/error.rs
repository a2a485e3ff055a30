//! What can go wrong between text and token ids.

use crate::error::{Diagnose, ErrorKind};
use crate::files::FileError;
use std::path::PathBuf;

/// Why a tokenizer or a chat template could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The checkpoint has no tokenizer.
    #[error("{} has no tokenizer (tokenizer.json, or a vocabulary in GGUF metadata)", path.display())]
    NoTokenizer {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The tokenizer breaks the rules of its format, or needs something unknown.
    #[error("the tokenizer in {} cannot be used: {what}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A text that the tokenizer refused.
    #[error("the text cannot be tokenized: {what}")]
    Encode {
        /// Why.
        what: String,
    },
    /// A chat template that is no sound template.
    #[error("the chat template of {} is broken: {what}", path.display())]
    Template {
        /// The checkpoint.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The chat template itself refused the messages.
    #[error("the model's chat template refuses these messages: {reason}")]
    Refused {
        /// The template's own words.
        reason: String,
    },
    /// The chat template stopped on these messages.
    #[error("the model's chat template cannot render these messages: {what}")]
    Render {
        /// Why.
        what: String,
    },
}

impl Diagnose for TextError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File(error) => error.kind(),
            _ => ErrorKind::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::File(error) => return error.hint(),
            Self::NoTokenizer { .. } => "put the checkpoint's tokenizer.json beside its weights".into(),
            Self::Tokenizer { path, .. } => {
                format!("download {} again, or use the checkpoint in another form", path.display())
            }
            Self::Encode { .. } => "send other text".into(),
            Self::Template { .. } => "correct the chat template of the checkpoint".into(),
            Self::Refused { .. } => "change the messages as the template asks (roles, their order, tools)".into(),
            Self::Render { .. } => "give every message a role and a content of the form that the template knows".into(),
        })
    }
}
