//! The API dialects. A dialect is one module with a `routes()` and one line in [`all`]; it parses its requests into a
//! [`Call`](crate::app::Call) and encodes the outputs of the generation, and has no other way to the engine.

pub mod openai_chat;
pub mod openai_error;

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// The routes of every dialect, sorted by name.
pub fn all() -> Vec<Router<Arc<App>>> {
    vec![openai_chat::routes()]
}
