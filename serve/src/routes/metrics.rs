//! `GET /metrics`, and the count of responses by route.

use crate::app::App;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// The route.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(page))
}

async fn page(State(app): State<Arc<App>>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.render(app.supervisor.gauges()))
}

/// Counts a response. Routes are counted by their template, so that ids in paths make no new series.
pub async fn count(State(app): State<Arc<App>>, route: MatchedPath, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.metrics.http_requests.count(&[route.as_str(), response.status().as_str()]);
    response
}
