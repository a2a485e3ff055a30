//! What the server needs of an engine host: start one, send requests, receive replies, end it.
//!
//! The traits are blocking and are used on the supervisor's own threads, never on an async worker.

use crit_core::error::Failure;
use crit_core::protocol::{EngineInfo, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set once, when the server stops: a launch in progress gives up.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks whoever watches the flag to give up.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the flag was raised.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Starts engine hosts, all alike.
pub trait EngineLauncher: Send + Sync + 'static {
    /// Starts a host, waits until its model is loaded, and opens the protocol.
    ///
    /// # Errors
    /// The host does not start, does not load, speaks another protocol, or `stop` was raised meanwhile. Nothing of it
    /// is left running then.
    fn launch(&self, stop: &StopFlag) -> Result<EngineLink, Failure>;
}

/// A host that is running, its model loaded.
pub struct EngineLink {
    /// What the engine is.
    pub info: EngineInfo,
    /// Where requests go.
    pub requests: Box<dyn RequestSink>,
    /// Where replies come from.
    pub replies: Box<dyn ReplySource>,
    /// The process.
    pub process: Box<dyn EngineProcess>,
}

/// The sending half of a connection.
pub trait RequestSink: Send {
    /// Sends one request; may block while the host does not read.
    ///
    /// # Errors
    /// The connection is gone.
    fn send(&mut self, request: &Request) -> Result<(), Failure>;
}

/// The receiving half of a connection.
pub trait ReplySource: Send {
    /// Waits for the next reply; `None` when the host closed the connection.
    ///
    /// # Errors
    /// The connection broke, or the host answered outside the protocol.
    fn receive(&mut self) -> Result<Option<Reply>, Failure>;
}

/// The process of a host.
pub trait EngineProcess: Send {
    /// Its id, if it is a process of this machine.
    fn pid(&self) -> Option<u32>;

    /// Waits up to `patience` for it to end by itself and says how it ended; `None` if it is still running.
    fn wait(&mut self, patience: Duration) -> Option<String>;

    /// Kills it and waits until it is gone.
    fn kill(&mut self);
}
