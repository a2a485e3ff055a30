//! Routes that belong to no dialect, and the router of them all.

mod guard;
mod health;
mod metrics;
mod models;

use crate::app::App;
use crate::dialects::{self, openai_error::OpenAiError};
use crate::problem::Problem;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use std::sync::Arc;

/// The router of a server.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new().merge(health::routes()).merge(metrics::routes()).merge(models::routes());
    for dialect in dialects::all() {
        router = router.merge(dialect);
    }
    router
        .method_not_allowed_fallback(no_method)
        .route_layer(from_fn_with_state(Arc::clone(&app), metrics::count))
        .fallback(no_route)
        .layer(DefaultBodyLimit::max(app.config.limits.body_bytes))
        .layer(from_fn_with_state(Arc::clone(&app), guard::own_host))
        .layer(from_fn(no_sniff))
        .with_state(app)
}

async fn no_route(request: Request) -> OpenAiError {
    Problem::NoRoute(format!("{} {}", request.method(), request.uri().path())).into()
}

async fn no_method(request: Request) -> OpenAiError {
    Problem::NoMethod { method: request.method().to_string(), path: request.uri().path().to_owned() }.into()
}

async fn no_sniff(request: Request, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-content-type-options", axum::http::HeaderValue::from_static("nosniff"));
    response
}
