//! Request bodies: JSON of a bounded size, whatever the content type says, as curl's default is a form.

use crate::problem::Problem;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde_json::Value;

/// The body as JSON.
///
/// # Errors
/// It is too large, cut off, or not JSON.
pub fn json(body: Result<Bytes, BytesRejection>, limit_bytes: usize) -> Result<Value, Problem> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::BodyTooLarge { limit_bytes },
        _ => Problem::NotJson(rejection.body_text()),
    })?;
    serde_json::from_slice(&body).map_err(|error| Problem::NotJson(error.to_string()))
}
