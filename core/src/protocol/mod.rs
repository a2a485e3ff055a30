//! The engine protocol: how a server or an evaluator speaks to an engine process.
//!
//! The engine host listens on a Unix socket whose path it was started with. A frame is a `u32` little-endian length
//! and that many bytes of UTF-8 JSON, at most [`MAX_FRAME_BYTES`]. The client sends [`Request`]s, the engine answers
//! with [`Reply`]s; replies carry the id of their request, so many requests share one connection. Full-vocabulary
//! log-probs never pass through frames but through a [`ring`], a plain file in shared memory.
//!
//! Versions: the client says its version in `open`; an engine that cannot speak it answers `error`. A minor addition
//! is a new optional field. `docs/engine-protocol.md` describes it for engines in other languages.

pub mod client;
pub mod frame;
pub mod host;
pub mod message;
pub mod ring;
pub mod spawn;

pub use client::{Client, ClientError, ConnectOptions, Generated, Generation, GenerationEvent};
pub use host::{HostError, Identity, serve, socket_from_env};
pub use message::*;
pub use spawn::{EngineCommand, EngineProcess, SpawnError};

/// Version of the protocol spoken here.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest frame accepted.
pub const MAX_FRAME_BYTES: usize = 64 << 20;
