//! What a server is told before it starts. Every bound of the server stands here, with its default.

use crit_core::sampling::SamplingParams;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A server's configuration.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Allows an address that other machines can reach.
    pub allow_remote: bool,
    /// Name the model is served under.
    pub model: String,
    /// Other names that mean the same model.
    pub aliases: Vec<String>,
    /// Sampling where a request says nothing, from the checkpoint's generation defaults.
    pub sampling: SamplingParams,
    /// Token ids that end a generation.
    pub end_ids: Vec<u32>,
    /// Longest sequence; 0 takes the engine's. The engine's own limit holds anyway.
    pub context: u32,
    /// Bounds on requests.
    pub limits: Limits,
    /// How the engine host is watched.
    pub supervision: Supervision,
}

impl ServerConfig {
    /// The defaults for a model: loopback, a free port, greedy, the engine's context.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            allow_remote: false,
            model: model.into(),
            aliases: Vec::new(),
            sampling: SamplingParams::default(),
            end_ids: Vec::new(),
            context: 0,
            limits: Limits::default(),
            supervision: Supervision::default(),
        }
    }
}

/// Bounds on requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest request body.
    pub body_bytes: usize,
    /// Most generations running and waiting; a request counts once a choice.
    pub generations: usize,
    /// Most prompt tokens of all generations running and waiting. A request alone is always taken.
    pub prompt_tokens: usize,
    /// Events kept for a client that does not read.
    pub backlog_events: usize,
    /// How long a client may leave its backlog more than half full.
    pub slow_client: Duration,
    /// Longest silence in a stream before a keep-alive comment.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            generations: 256,
            prompt_tokens: 4 << 20,
            backlog_events: 4096,
            slow_client: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
        }
    }
}

/// How the engine host is watched, restarted and stopped.
#[derive(Clone, Copy, Debug)]
pub struct Supervision {
    /// A host with work that makes no progress for this long is hung. It must exceed the longest single step.
    pub hang_after: Duration,
    /// How often the engine's counters are asked for.
    pub stats_every: Duration,
    /// Restarts in a row, without a host that served or stayed up, before the server gives up.
    pub max_restarts: u32,
    /// Wait before the first restart; it doubles with each further one.
    pub backoff: Duration,
    /// Longest wait before a restart.
    pub backoff_max: Duration,
    /// A host that stayed up this long makes the count of restarts start over.
    pub stable_after: Duration,
    /// How long a request waits for a restart before it is refused.
    pub restart_wait: Duration,
    /// How long running requests may go on after the order to stop.
    pub drain: Duration,
    /// How long a host may take to exit by itself before it is killed.
    pub close: Duration,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            hang_after: Duration::from_secs(180),
            stats_every: Duration::from_secs(1),
            max_restarts: 5,
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(10),
            stable_after: Duration::from_secs(60),
            restart_wait: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            close: Duration::from_secs(5),
        }
    }
}
