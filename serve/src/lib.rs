//! The resident server: one model behind HTTP, its engine in a process of its own.
//!
//! The way of a request: [`routes`] → a dialect of [`dialects`] parses it → [`app`] admits, renders, tokenises and checks
//! it → [`generation`] runs its choices at the engine and turns tokens into text ([`pipe`], [`stop`]) → the dialect
//! encodes the outputs. The engine is [`supervisor`]'s: it starts the host process, watches it and restarts it.
//!
//! Invariants: everything that can be refused is refused before a status is sent; no async worker ever waits for an
//! engine, and no engine ever waits for a client; a request whose client left is cancelled at the engine.
//!
//! No HTTP type is used outside this package, and nothing here runs an engine: it speaks the engine protocol.

pub mod admission;
pub mod app;
pub mod background;
mod body;
pub mod config;
pub mod dialects;
pub mod engine;
pub mod error;
mod fields;
pub mod generation;
pub mod metrics;
pub mod pipe;
pub mod problem;
pub mod routes;
pub mod server;
pub mod stop;
pub mod supervisor;
pub mod text;

pub use background::BackgroundServer;
pub use config::{Limits, ServerConfig, Supervision};
pub use engine::HostLauncher;
pub use error::ServeError;
pub use server::{Readiness, Server};
pub use text::{Conversation, ModelText, Text, TextDecoder};
