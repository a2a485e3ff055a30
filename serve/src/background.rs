//! A server on a thread of its own, for callers that are not async.

use crate::config::ServerConfig;
use crate::engine::EngineLauncher;
use crate::error::ServeError;
use crate::server::{Readiness, Server};
use crate::text::Text;
use crit_core::protocol::EngineInfo;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A server that runs. Dropping it stops it and its engine.
pub struct BackgroundServer {
    address: SocketAddr,
    readiness: Readiness,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl BackgroundServer {
    /// Listens, starts the engine and serves.
    ///
    /// # Errors
    /// The address is refused or cannot be had, or no runtime can be.
    pub fn start(
        config: ServerConfig,
        text: Arc<dyn Text>,
        launcher: Arc<dyn EngineLauncher>,
    ) -> Result<Self, ServeError> {
        let runtime = runtime()?;
        let server = runtime.block_on(Server::bind(config, text, launcher))?;
        let (address, readiness) = (server.local_addr(), server.readiness());
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            runtime.block_on(server.run(async {
                let _ = stopped.await;
            }))
        };
        let thread = thread::Builder::new()
            .name("server".into())
            .spawn(body)
            .map_err(|error| ServeError::Run(error.to_string()))?;
        Ok(Self { address, readiness, stop: Some(stop), thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL of its routes, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the engine is up.
    ///
    /// # Errors
    /// It never will be.
    pub fn wait_ready(&self) -> Result<EngineInfo, ServeError> {
        runtime()?.block_on(self.readiness.clone().wait())
    }

    /// Stops the server and its engine and waits until both are gone.
    ///
    /// # Errors
    /// What ended the server, if it was not this call.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServeError> {
        self.stop = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(ServeError::Run("the server's thread panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for BackgroundServer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What a server runs on: few threads, for the cores are the engine's. A second one is woken with every token and gains
/// nothing; a token takes a thread some 30 µs.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> Result<Runtime, ServeError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((cores / 4).clamp(1, 4))
        .enable_all()
        .build()
        .map_err(|error| ServeError::Run(error.to_string()))
}
