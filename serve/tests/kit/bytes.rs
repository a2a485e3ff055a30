//! A text model whose tokens are bytes, with a few longer ones, and a template that shows what it was given.

use crit_core::error::{ErrorKind, Failure};
use crit_serve::{Conversation, Text, TextDecoder};
use serde_json::Value;

/// The end token.
pub const END: u32 = 256;
/// The first of the longer tokens.
pub const PIECES: u32 = 257;

/// Tokens 0..=255 are bytes, 256 is the end, the rest are these pieces.
#[derive(Clone, Default)]
pub struct ByteText {
    pub pieces: Vec<Vec<u8>>,
}

impl Text for ByteText {
    fn render(&self, conversation: &Conversation) -> Result<String, Failure> {
        let mut prompt = String::new();
        for message in &conversation.messages {
            let role = message["role"].as_str().unwrap_or_default();
            if role == "tool" && prompt.is_empty() {
                return Err(Failure::new(ErrorKind::Input, "a conversation cannot begin with a tool result"));
            }
            prompt.push_str(&format!("<{role}>{}", message["content"].as_str().unwrap_or_default()));
            if let Some(calls) = message.get("tool_calls") {
                prompt.push_str(&calls.to_string());
            }
        }
        if !conversation.tools.is_empty() {
            prompt.push_str(&Value::Array(conversation.tools.clone()).to_string());
        }
        if !conversation.variables.is_empty() {
            prompt.push_str(&Value::Object(conversation.variables.clone()).to_string());
        }
        prompt.push_str("<assistant>");
        Ok(prompt)
    }

    fn encode(&self, prompt: &str) -> Result<Vec<u32>, Failure> {
        Ok(prompt.bytes().map(u32::from).collect())
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) => self.pieces.get(id.saturating_sub(PIECES) as usize).cloned().unwrap_or_default(),
        }
    }

    fn decoder(&self) -> Box<dyn TextDecoder> {
        Box::new(ByteDecoder { text: self.clone(), held: Vec::new() })
    }
}

struct ByteDecoder {
    text: ByteText,
    held: Vec<u8>,
}

impl TextDecoder for ByteDecoder {
    fn push(&mut self, id: u32) -> String {
        self.held.extend(self.text.token_bytes(id));
        let complete = match std::str::from_utf8(&self.held) {
            Ok(_) => self.held.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.held.len(),
        };
        String::from_utf8_lossy(&self.held.drain(..complete).collect::<Vec<u8>>()).into_owned()
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}
