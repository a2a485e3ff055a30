//! Errors as OpenAI's clients read them, with a status and inside a stream.

use crate::problem::Problem;
use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A problem as OpenAI's clients read it.
#[derive(Clone, Debug)]
pub struct OpenAiError(pub Problem);

impl OpenAiError {
    /// The body: an object with the one key `error`.
    pub fn body(&self) -> Value {
        let problem = &self.0;
        let param = match problem {
            Problem::Invalid { path, .. } if !path.is_empty() => Some(path.as_str()),
            Problem::UnknownModel { .. } => Some("model"),
            Problem::TooLong { .. } => Some("messages"),
            _ => None,
        };
        let mut error = json!({
            "message": problem.to_string(),
            "type": self.kind(),
            "param": param,
            "code": problem.code(),
        });
        if let Problem::TooLong { prompt_tokens, context } = problem {
            error["n_prompt_tokens"] = json!(prompt_tokens);
            error["n_ctx"] = json!(context);
        }
        json!({ "error": error })
    }

    fn kind(&self) -> &'static str {
        match self.0.status().as_u16() {
            404 => "not_found_error",
            403 => "permission_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }
}

impl From<Problem> for OpenAiError {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.0.status(), Json(self.body())).into_response();
        if let Some(wait) = self.0.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        response
    }
}
