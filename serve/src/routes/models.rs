//! `GET /v1/models` and `/v1/models/{id}`.

use crate::app::App;
use crate::dialects::openai_error::OpenAiError;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;

/// The routes. Names may hold slashes, as those of model hubs do.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/models", get(list)).route("/v1/models/{*id}", get(one))
}

async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let names = std::iter::once(&app.config.model).chain(&app.config.aliases);
    let models: Vec<Value> = names.map(|name| model(&app, name)).collect();
    Json(json!({"object": "list", "data": models}))
}

async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, OpenAiError> {
    app.check_model(&id)?;
    Ok(Json(model(&app, &id)))
}

fn model(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started_unix_s,
        "owned_by": "crit",
        "max_model_len": app.supervisor.host().map(|host| app.context(&host)),
    })
}
