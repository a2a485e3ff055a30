//! The engine's side: serves an [`Engine`] on a Unix socket.
//!
//! One thread, the caller's, owns the engine and runs its steps. A reader and a writer thread a connection turn frames
//! into commands for it and its replies into frames, so that no client can hold it up: one that does not read its
//! replies is cut off. A connection that ends takes its requests with it. A message that is no request is answered by
//! `error`; nothing a client sends ends the engine but `close`.

mod connections;
mod scoring;

use self::connections::{Command, Connections, listen, watch_parent};
use self::scoring::Scoring;
use super::spawn::{PARENT_ENV, SOCKET_ENV};
use super::{EngineInfo, PROTOCOL_VERSION, Reply, Request};
use crate::error::{Diagnose, ErrorKind, Failure};
use crate::runtime::{Engine, Event, Executor};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};

/// What an engine says of itself beside what its executor offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name and version.
    pub engine: String,
    /// Architecture family of the model.
    pub arch: String,
    /// Where it runs.
    pub target: String,
    /// Plugins that are on, `name@version`.
    pub plugins: Vec<String>,
}

/// Why an engine cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The environment does not say where to listen.
    #[error("{SOCKET_ENV} is not set: an engine host is started with the path of the socket it listens on")]
    NoSocket,
    /// Someone serves there already.
    #[error("another engine listens on {socket}")]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket cannot be used.
    #[error("cannot listen on {socket}: {source}")]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Diagnose for HostError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSocket => ErrorKind::Usage,
            _ => ErrorKind::Environment,
        }
    }
}

/// Where the environment says to listen.
///
/// # Errors
/// It does not say.
pub fn socket_from_env() -> Result<PathBuf, HostError> {
    std::env::var_os(SOCKET_ENV).map(PathBuf::from).ok_or(HostError::NoSocket)
}

/// Serves `engine` on `socket` until a client says `close`. If the environment names the process it runs for,
/// this process exits when that is gone.
///
/// # Errors
/// The socket cannot be used.
pub fn serve<E: Executor>(engine: Engine<E>, identity: Identity, socket: &Path) -> Result<(), HostError> {
    let (sender, commands) = mpsc::channel();
    if let Some(user) = std::env::var(PARENT_ENV).ok().and_then(|id| id.parse().ok()) {
        watch_parent(user);
    }
    let listener = listen(socket, sender)?;
    let mut host = Host {
        engine,
        identity,
        connections: Connections::default(),
        requests: HashMap::new(),
        scoring: Scoring::default(),
        closing: Vec::new(),
        events: Vec::new(),
    };
    host.run(&commands);
    host.connections.finish();
    listener.stop();
    Ok(())
}

/// A request as a connection knows it.
type Address = (u64, u64);

struct Host<E> {
    engine: Engine<E>,
    identity: Identity,
    connections: Connections,
    /// Which request of which connection an engine key is.
    requests: HashMap<u64, Address>,
    scoring: Scoring,
    /// Connections that said `close`.
    closing: Vec<u64>,
    events: Vec<Event>,
}

impl<E: Executor> Host<E> {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            while let Ok(command) = commands.try_recv() {
                self.handle(command);
            }
            let scored = self.scoring.advance(&mut self.engine, &mut self.connections);
            let stepped = self.engine.step_once(&mut self.events);
            self.send_events();
            if scored || stepped {
                continue;
            }
            if !self.closing.is_empty() && self.engine.is_idle() && self.scoring.is_idle() {
                self.closing.iter().for_each(|connection| self.connections.send(*connection, Reply::Closed));
                return;
            }
            match commands.recv() {
                Ok(command) => self.handle(command),
                Err(_) => return,
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Connected { connection, link } => self.connections.add(connection, link),
            Command::Message { connection, request } => self.answer(connection, *request),
            Command::Malformed { connection, id, error } => {
                self.connections.send(connection, Reply::Error { id, error });
            }
            Command::Gone { connection } => self.forget(connection),
        }
    }

    fn answer(&mut self, connection: u64, request: Request) {
        if let Request::Open { protocol, .. } = request {
            return self.open(connection, protocol);
        }
        if !self.connections.is_open(connection) {
            return self.cut_off(connection, "the first message of a connection must be `open`");
        }
        match request {
            Request::Open { .. } => {}
            Request::Info { id } => {
                self.connections.send(connection, Reply::Info { id, info: Box::new(self.info()) });
            }
            Request::Stats { id, brief } => {
                let stats = if brief { self.engine.counters() } else { self.engine.stats() };
                self.connections.send(connection, Reply::Stats { id, stats: Box::new(stats) });
            }
            Request::Submit { id, generate } => {
                if self.is_live((connection, id)) {
                    return self.cut_off(connection, "a request id was used again while its request was live");
                }
                if let Some(error) = self.refusal() {
                    return self.connections.send(connection, Reply::Error { id: Some(id), error });
                }
                match self.engine.submit(generate) {
                    Ok(key) => {
                        self.requests.insert(key, (connection, id));
                    }
                    Err(error) => {
                        self.connections.send(connection, Reply::Error { id: Some(id), error: error.into() });
                    }
                }
            }
            Request::Cancel { id } => self.cancel((connection, id)),
            Request::Score { id, plan, ring, slots, slot_bytes } => {
                if self.is_live((connection, id)) {
                    return self.cut_off(connection, "a request id was used again while its request was live");
                }
                if let Some(error) = self.refusal() {
                    return self.connections.send(connection, Reply::Error { id: Some(id), error });
                }
                let ring = (PathBuf::from(ring), slots, slot_bytes);
                if let Err(error) = self.scoring.add(&self.engine, (connection, id), plan, ring) {
                    self.connections.send(connection, Reply::Error { id: Some(id), error });
                }
            }
            Request::ScoreAck { id, chunk } => self.scoring.acknowledge((connection, id), chunk),
            Request::Close => self.closing.push(connection),
        }
    }

    fn open(&mut self, connection: u64, protocol: u32) {
        if protocol != PROTOCOL_VERSION {
            let problem = format!("protocol version {protocol} is not spoken here, {PROTOCOL_VERSION} is");
            return self.cut_off(connection, &problem);
        }
        self.connections.open(connection);
        let engine = self.identity.engine.clone();
        self.connections.send(connection, Reply::Opened { protocol: PROTOCOL_VERSION, engine });
    }

    fn info(&self) -> EngineInfo {
        let executor = self.engine.executor().info();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        EngineInfo {
            engine: self.identity.engine.clone(),
            arch: self.identity.arch.clone(),
            target: self.identity.target.clone(),
            max_context: number(self.engine.max_context()),
            max_batch: number(executor.slots),
            vocab: number(executor.vocab),
            plugins: self.identity.plugins.clone(),
            executor: Some(executor.clone()),
        }
    }

    fn refusal(&self) -> Option<Failure> {
        let closing = !self.closing.is_empty();
        closing.then(|| Failure::new(ErrorKind::Engine, "the engine is closing and takes no new requests"))
    }

    fn is_live(&self, address: Address) -> bool {
        self.requests.values().any(|known| *known == address) || self.scoring.has(address)
    }

    fn cancel(&mut self, address: Address) {
        let key = self.requests.iter().find(|(_, known)| **known == address).map(|(key, _)| *key);
        match key {
            Some(key) => {
                self.engine.cancel(key, &mut self.events);
                self.send_events();
            }
            None => self.scoring.cancel(&mut self.engine, address, &mut self.connections),
        }
    }

    fn cut_off(&mut self, connection: u64, problem: &str) {
        let error = Failure::new(ErrorKind::Usage, format!("engine protocol: {problem}"));
        self.connections.send(connection, Reply::Error { id: None, error });
        self.forget(connection);
    }

    fn forget(&mut self, connection: u64) {
        self.connections.remove(connection);
        let keys: Vec<u64> =
            self.requests.iter().filter(|(_, address)| address.0 == connection).map(|(key, _)| *key).collect();
        for key in keys {
            self.engine.cancel(key, &mut self.events);
        }
        self.scoring.forget(&mut self.engine, connection);
        self.send_events();
    }

    fn send_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let (key, last) = match &event {
                Event::Tokens { key, .. } => (*key, false),
                Event::Finished { key, .. } | Event::Failed { key, .. } => (*key, true),
            };
            let Some(&(connection, id)) = self.requests.get(&key) else { continue };
            if last {
                self.requests.remove(&key);
            }
            let reply = match event {
                Event::Tokens { tokens, logprobs, .. } => Reply::Tokens { id, tokens, logprobs },
                Event::Finished { reason, usage, .. } => Reply::Finished { id, reason, usage },
                Event::Failed { error, .. } => Reply::Error { id: Some(id), error },
            };
            self.connections.send(connection, reply);
        }
    }
}
