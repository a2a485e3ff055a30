//! The text model of a checkpoint: its own tokenizer and chat template.

use super::literal::{self, Literal};
use super::{Conversation, Text, TextDecoder};
use crate::config::ServerConfig;
use crit_core::error::{ErrorKind, Failure};
use crit_core::files::{Checkpoint, Generation};
use crit_core::sampling::SamplingParams;
use crit_core::text::{ChatTemplate, TextError, TextStream, Tokenizer};
use serde_json::Value;

/// Tokenizer and chat template of a checkpoint.
#[derive(Clone)]
pub struct ModelText {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    literal: Literal,
}

impl ModelText {
    /// Those of `checkpoint`. Without a chat template it is a base model: the messages' texts, joined by a blank line,
    /// are the text it goes on with; requests with tools are refused.
    ///
    /// # Errors
    /// The tokenizer is missing, or one of them is broken.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        let literal = Literal::new(&tokenizer.special_texts());
        Ok(Self { tokenizer, template: ChatTemplate::from_checkpoint(checkpoint)?, literal })
    }

    /// The configuration to serve `checkpoint` under `name` with: its generation defaults and end tokens.
    pub fn config(&self, name: impl Into<String>, checkpoint: &Checkpoint) -> ServerConfig {
        let mut config = ServerConfig::new(name);
        config.sampling = sampling_defaults(checkpoint.generation());
        config.end_ids = checkpoint.eos_ids().union(self.tokenizer.eos()).copied().collect();
        config
    }
}

/// A checkpoint's generation defaults. One that does not say how to sample is sampled as it is, as clients of this API
/// expect; one that says not to sample is greedy.
pub fn sampling_defaults(generation: &Generation) -> SamplingParams {
    let off = SamplingParams::default();
    let real = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
    let temperature = match generation.do_sample {
        Some(false) => 0.0,
        _ => real(generation.temperature, 1.0),
    };
    SamplingParams {
        temperature,
        top_k: generation.top_k.and_then(|k| u32::try_from(k).ok()).unwrap_or(off.top_k),
        top_p: real(generation.top_p, off.top_p),
        min_p: real(generation.min_p, off.min_p),
        repetition_penalty: real(generation.repetition_penalty, off.repetition_penalty),
        ..off
    }
}

impl Text for ModelText {
    fn render(&self, conversation: &Conversation) -> Result<String, Failure> {
        let mut messages = Value::Array(conversation.messages.clone());
        self.literal.mark(&mut messages);
        let Some(template) = &self.template else { return plain_text(&messages, !conversation.tools.is_empty()) };
        let tools = (!conversation.tools.is_empty()).then(|| {
            let mut tools = Value::Array(conversation.tools.clone());
            self.literal.mark(&mut tools);
            tools
        });
        let rendered = template.render(&messages, tools.as_ref(), true, &conversation.variables)?;
        Ok(rendered)
    }

    fn encode(&self, prompt: &str) -> Result<Vec<u32>, Failure> {
        let mut parts = literal::parts(prompt);
        let mut ids = self.tokenizer.encode_chat(parts.next().map_or("", |(first, _)| first))?;
        for (part, literally) in parts.filter(|(part, _)| !part.is_empty()) {
            ids.extend(self.tokenizer.encode_with(part, !literally)?);
        }
        Ok(ids)
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id).to_vec()
    }

    fn decoder(&self) -> Box<dyn TextDecoder> {
        Box::new(ModelDecoder(Some(self.tokenizer.stream(true))))
    }
}

/// What a base model goes on with.
fn plain_text(messages: &Value, tools: bool) -> Result<String, Failure> {
    if tools {
        return Err(Failure::new(ErrorKind::Input, "the model has no chat template, so it cannot be offered tools")
            .with_hint("put a chat_template.jinja beside its weights, or serve an instruction-tuned checkpoint"));
    }
    let texts: Vec<String> = messages.as_array().into_iter().flatten().map(|one| content(&one["content"])).collect();
    Ok(texts.join("\n\n"))
}

/// The text of a message: a string, or the texts of its parts.
fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

struct ModelDecoder(Option<TextStream>);

impl TextDecoder for ModelDecoder {
    fn push(&mut self, id: u32) -> String {
        self.0.as_mut().map_or_else(String::new, |stream| stream.push(id))
    }

    fn finish(&mut self) -> String {
        self.0.take().map_or_else(String::new, TextStream::finish)
    }
}
