//! What the server needs of tokenizer and chat template, so that dialects and tests do not depend on model files.

mod literal;
mod model;

pub use model::{ModelText, sampling_defaults};

use crit_core::error::Failure;
use serde_json::{Map, Value};

/// A conversation, ready for a chat template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages: objects with `role`, `content` (a string) and what else the role has.
    pub messages: Vec<Value>,
    /// Tools the model may call, as the client described them.
    pub tools: Vec<Value>,
    /// Further template variables.
    pub variables: Map<String, Value>,
}

/// Tokenizer and chat template of a model.
pub trait Text: Send + Sync + 'static {
    /// The prompt text of a conversation, ending where the assistant's turn begins.
    ///
    /// # Errors
    /// The template refuses the conversation.
    fn render(&self, conversation: &Conversation) -> Result<String, Failure>;

    /// Token ids of a rendered prompt: special tokens that the template wrote are recognised, those that messages spell
    /// are text.
    ///
    /// # Errors
    /// The text cannot be tokenised.
    fn encode(&self, prompt: &str) -> Result<Vec<u32>, Failure>;

    /// The bytes a token stands for; empty for an unknown id.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// A decoder for one generated text.
    fn decoder(&self) -> Box<dyn TextDecoder>;
}

/// Turns tokens into text, holding back characters whose bytes are not complete.
pub trait TextDecoder: Send {
    /// Takes the next token; text that is complete.
    fn push(&mut self, id: u32) -> String;

    /// The end: what was held back, made valid text.
    fn finish(&mut self) -> String;
}
