//! OpenAI's chat completions: `POST /v1/chat/completions`.

mod answer;
mod request;

pub use request::ChatRequest;

use super::openai_error::OpenAiError;
use crate::app::App;
use crate::body;
use answer::Answer;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use axum::routing::post;
use std::sync::Arc;
use std::time::Instant;

const API: &str = "chat_completions";

/// The routes of the dialect.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/chat/completions", post(chat))
}

async fn chat(State(app): State<Arc<App>>, body: Result<Bytes, BytesRejection>) -> Result<Response, OpenAiError> {
    let received = Instant::now();
    let body = body::json(body, app.config.limits.body_bytes)?;
    let request = ChatRequest::parse(&body, &app.config.sampling, received)?;
    let answer = Answer::new(&app, &request);
    let stream = request.stream;
    let generation = app.generate(request.call).await?;
    if stream { Ok(answer.stream(&app, generation)) } else { answer.whole(generation).await }
}
