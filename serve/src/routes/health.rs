//! `GET /` and `GET /health`: whether a request sent now would be served, and if not, why.

use crate::app::{App, not_ready};
use crate::problem::Problem;
use crate::supervisor::EngineState;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;

/// The routes.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/", get(async || "crit\n")).route("/health", get(health))
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let state = app.supervisor.state().borrow().clone();
    if app.draining() {
        return unhealthy("draining", "the server is shutting down");
    }
    match &state {
        EngineState::Ready(host) => Json(json!({
            "status": "ok",
            "model": app.config.model,
            "engine": host.info.engine,
            "target": host.info.target,
            "engine_pid": host.pid,
            "context": app.context(host),
        }))
        .into_response(),
        other => unhealthy(word(other), reason(&not_ready(other))),
    }
}

fn unhealthy(status: &str, reason: impl Into<Value>) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status, "reason": reason.into()}))).into_response()
}

fn reason(problem: &Problem) -> String {
    match problem {
        Problem::NotReady { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn word(state: &EngineState) -> &'static str {
    match state {
        EngineState::Loading => "loading",
        EngineState::Ready(_) => "ok",
        EngineState::Restarting { .. } => "restarting",
        EngineState::Refused(_) | EngineState::Lost { .. } => "failed",
        EngineState::Stopped => "stopped",
    }
}
