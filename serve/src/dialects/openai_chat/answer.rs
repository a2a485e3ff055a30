//! From the outputs of a generation to a chat completion, whole or as a stream of chunks. Both are built from the same
//! pieces, so what a client accumulates from a stream equals the whole answer.

use super::ChatRequest;
use crate::app::App;
use crate::dialects::openai_error::OpenAiError;
use crate::generation::{Finish, Generation, Output, Totals};
use crate::metrics::Metrics;
use crate::pipe::{ScoredToken, TokenEntry};
use crate::problem::Problem;
use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The constant parts of one answer.
#[derive(Clone, Debug)]
pub struct Answer {
    id: String,
    created: u64,
    model: String,
    choices: usize,
    logprobs: bool,
    include_usage: bool,
}

#[derive(Default)]
struct WholeChoice {
    text: String,
    tokens: Vec<TokenEntry>,
    finish: Option<Finish>,
}

impl Answer {
    /// The answer to `request`.
    pub fn new(app: &App, request: &ChatRequest) -> Self {
        Self {
            id: format!("chatcmpl-{}", uuid::Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: app.config.model.clone(),
            choices: request.call.choices as usize,
            logprobs: request.call.top_logprobs.is_some(),
            include_usage: request.include_usage,
        }
    }

    /// The whole answer, once it is complete.
    pub async fn whole(self, mut generation: Generation) -> Result<Response, OpenAiError> {
        let mut choices: Vec<WholeChoice> = (0..self.choices).map(|_| WholeChoice::default()).collect();
        while let Some(output) = generation.next().await {
            match output {
                Output::Text { choice, piece } => {
                    choices[choice].text.push_str(&piece.text);
                    choices[choice].tokens.extend(piece.tokens);
                }
                Output::Finish { choice, finish } => choices[choice].finish = Some(finish),
                Output::Fault(fault) => return Err(Problem::from(fault).into()),
            }
        }
        let usage = usage(generation.totals());
        let choices: Vec<Value> =
            choices.into_iter().enumerate().map(|(at, choice)| self.whole_choice(at, choice)).collect();
        let body = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
        });
        Ok(Json(body).into_response())
    }

    fn whole_choice(&self, index: usize, choice: WholeChoice) -> Value {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": null},
            "logprobs": self.logprobs(&choice.tokens),
            "finish_reason": choice.finish.map(Finish::word),
        })
    }

    /// The answer as a stream.
    pub fn stream(self, app: &Arc<App>, generation: Generation) -> Response {
        let frames =
            (0..self.choices).map(|choice| self.chunk(choice, json!({"role": "assistant", "content": ""}), &[], None));
        let state = StreamState {
            frames: frames.map(Some).collect(),
            answer: self,
            generation,
            ended: false,
            _open: OpenStream::count(&app.metrics),
        };
        let events = stream::unfold(state, |mut state| async move {
            let frame = state.next_frame().await?;
            Some((Ok::<_, Infallible>(Event::default().data(frame)), state))
        });
        let keep_alive = KeepAlive::new().interval(app.config.limits.keep_alive).text("keep-alive");
        let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
        // Proxies that buffer would hold the whole answer back.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn chunk(&self, choice: usize, delta: Value, tokens: &[TokenEntry], finish: Option<Finish>) -> Value {
        let choice = json!({
            "index": choice,
            "delta": delta,
            "logprobs": if tokens.is_empty() { Value::Null } else { self.logprobs(tokens) },
            "finish_reason": finish.map(Finish::word),
        });
        self.frame(json!([choice]), Value::Null)
    }

    fn frame(&self, choices: Value, usage: Value) -> Value {
        let mut frame = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.include_usage {
            frame["usage"] = usage;
        }
        frame
    }

    fn logprobs(&self, tokens: &[TokenEntry]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let entries: Vec<Value> = tokens
            .iter()
            .map(|entry| {
                let mut value = scored(&entry.token);
                value["top_logprobs"] = entry.top.iter().map(scored).collect();
                value
            })
            .collect();
        json!({"content": entries, "refusal": null})
    }
}

/// A stream in progress: frames ready to go, and the generation that makes more. `None` is the last frame's mark.
struct StreamState {
    frames: VecDeque<Option<Value>>,
    answer: Answer,
    generation: Generation,
    ended: bool,
    _open: OpenStream,
}

impl StreamState {
    async fn next_frame(&mut self) -> Option<String> {
        loop {
            match self.frames.pop_front() {
                Some(Some(frame)) => return Some(frame.to_string()),
                Some(None) => return Some("[DONE]".to_owned()),
                None if self.ended => return None,
                None => self.advance().await,
            }
        }
    }

    async fn advance(&mut self) {
        let answer = &self.answer;
        match self.generation.next().await {
            Some(Output::Text { choice, piece }) => {
                let frame = answer.chunk(choice, json!({"content": piece.text}), &piece.tokens, None);
                self.frames.push_back(Some(frame));
            }
            Some(Output::Finish { choice, finish }) => {
                self.frames.push_back(Some(answer.chunk(choice, json!({}), &[], Some(finish))));
            }
            Some(Output::Fault(fault)) => {
                // No `[DONE]` after an error: a client must not take the answer for complete.
                self.frames.push_back(Some(OpenAiError(fault.into()).body()));
                self.ended = true;
            }
            None => {
                if answer.include_usage {
                    self.frames.push_back(Some(answer.frame(json!([]), usage(self.generation.totals()))));
                }
                self.frames.push_back(None);
                self.ended = true;
            }
        }
    }
}

/// Counts a stream as open while it lives.
struct OpenStream(Arc<Metrics>);

impl OpenStream {
    fn count(metrics: &Arc<Metrics>) -> Self {
        metrics.streams_open.add(1);
        Self(Arc::clone(metrics))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams_open.add(-1);
    }
}

fn usage(totals: Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.generated_tokens,
        "total_tokens": totals.prompt_tokens + totals.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": totals.cached_tokens},
    })
}

fn scored(token: &ScoredToken) -> Value {
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        // JSON has no infinity; a token that cannot occur has the lowest finite value.
        "logprob": if token.logprob.is_finite() { token.logprob } else { f32::MIN },
        "bytes": token.bytes,
    })
}
