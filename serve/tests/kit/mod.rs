//! What the tests of the server share: an engine that plays scripts, a text model of bytes, and a plain HTTP client.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

pub mod bytes;
pub mod http;
pub mod scripted;

pub use bytes::{ByteText, END};
pub use http::Client;
pub use scripted::{Scripted, Step};

use crit_serve::{BackgroundServer, ServerConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A configuration whose waits are short.
pub fn config() -> ServerConfig {
    let mut config = ServerConfig::new("test/model");
    config.end_ids = vec![END];
    config.supervision.stats_every = Duration::from_millis(20);
    config.supervision.backoff = Duration::from_millis(20);
    config.supervision.drain = Duration::from_secs(2);
    config
}

/// A server over a scripted engine, ready.
pub fn serve_with(config: ServerConfig, engine: &Scripted) -> (BackgroundServer, Client) {
    let server = BackgroundServer::start(config, Arc::new(ByteText::default()), Arc::new(engine.clone())).unwrap();
    server.wait_ready().unwrap();
    let client = Client::new(server.address());
    (server, client)
}

/// A server over an engine that answers every request with these steps.
pub fn serve(steps: Vec<Step>) -> (BackgroundServer, Client, Scripted) {
    let engine = Scripted::new(move |_| steps.clone());
    let (server, client) = serve_with(config(), &engine);
    (server, client, engine)
}

/// Waits until `done`, at most five seconds.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "not within 5 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
