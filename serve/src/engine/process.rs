//! Engine hosts as processes of this machine, reached over their socket.
//!
//! The server speaks the protocol's messages over one connection of its own and does not use the blocking client of
//! `crit-core`, because that writes to the socket on the caller's thread, which here would be an async worker.

use super::link::{EngineLauncher, EngineLink, EngineProcess, ReplySource, RequestSink, StopFlag};
use crit_core::error::{ErrorKind, Failure};
use crit_core::protocol::frame::{FrameError, read_frame, write_frame};
use crit_core::protocol::{self, EngineCommand, EngineInfo, PROTOCOL_VERSION, Reply, Request};
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a host that loads is looked after.
const LOAD_POLL: Duration = Duration::from_millis(10);

/// How long the exit status of a host that closed its connection is waited for.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// Starts a command as engine host.
#[derive(Clone, Debug)]
pub struct HostLauncher {
    command: EngineCommand,
    load_timeout: Duration,
    socket: Arc<Mutex<Option<PathBuf>>>,
}

impl HostLauncher {
    /// A launcher of `command`, which may take `load_timeout` until its model is loaded. The log of a host that was
    /// lost is kept beside the new one's, as `<log>.previous`.
    pub fn new(command: EngineCommand, load_timeout: Duration) -> Self {
        Self { command, load_timeout, socket: Arc::default() }
    }

    /// The socket of the host that runs now, for whoever reads its counters while it serves. Clones of this launcher
    /// know it too.
    pub fn socket(&self) -> Option<PathBuf> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep_previous_log(&self) {
        let log = &self.command.log;
        let mut name = log.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".previous");
        let kept: PathBuf = log.with_file_name(name);
        // The first host has none, and a log is not worth failing for.
        let _ = std::fs::rename(log, kept);
    }

    /// Connects on a thread of its own, so that a stop or a timeout can end it by ending the host.
    fn connect(&self, process: &protocol::EngineProcess, stop: &StopFlag) -> Result<(UnixStream, EngineInfo), Failure> {
        let started = Instant::now();
        thread::scope(|scope| {
            let connecting = scope.spawn(|| open(process));
            let mut timed_out = false;
            while !connecting.is_finished() {
                timed_out |= started.elapsed() > self.load_timeout;
                if timed_out || stop.raised() {
                    process.kill();
                }
                thread::sleep(LOAD_POLL);
            }
            let opened = connecting.join().unwrap_or_else(|_| Err(engine_failure("its connection panicked")));
            opened.map_err(|failure| match timed_out {
                true => engine_failure(format!("it was not ready within {:?}", self.load_timeout)),
                false => failure,
            })
        })
    }
}

impl EngineLauncher for HostLauncher {
    fn launch(&self, stop: &StopFlag) -> Result<EngineLink, Failure> {
        self.keep_previous_log();
        let process = protocol::EngineProcess::spawn(&self.command).map_err(Failure::from)?;
        let (stream, info) = self.connect(&process, stop).map_err(|failure| with_log(failure, &process))?;
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(process.socket().into());
        let writer = stream.try_clone().map_err(|error| engine_failure(error.to_string()))?;
        Ok(EngineLink {
            info,
            requests: Box::new(SocketSink(writer)),
            replies: Box::new(SocketSource(stream)),
            process: Box::new(HostProcess(process)),
        })
    }
}

/// Dials, opens the protocol and asks what the engine is.
fn open(process: &protocol::EngineProcess) -> Result<(UnixStream, EngineInfo), Failure> {
    let mut stream = dial(process)?;
    let opening = Request::Open { protocol: PROTOCOL_VERSION, client: "crit serve".into() };
    match ask(&mut stream, &opening, process)? {
        Reply::Opened { protocol: PROTOCOL_VERSION, .. } => {}
        Reply::Opened { protocol, .. } => {
            return Err(engine_failure(format!("it speaks protocol {protocol}, this server {PROTOCOL_VERSION}")));
        }
        other => return Err(unexpected("open", &other)),
    }
    match ask(&mut stream, &Request::Info { id: 0 }, process)? {
        Reply::Info { info, .. } => Ok((stream, *info)),
        other => Err(unexpected("info", &other)),
    }
}

fn dial(process: &protocol::EngineProcess) -> Result<UnixStream, Failure> {
    loop {
        let socket: &Path = process.socket();
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(_) => {
                if let Some(how) = process.state().ended_within(LOAD_POLL) {
                    return Err(engine_failure(format!("it exited with {how} before it was ready")));
                }
            }
        }
    }
}

fn ask(stream: &mut UnixStream, request: &Request, process: &protocol::EngineProcess) -> Result<Reply, Failure> {
    let answer = write_frame(stream, request).and_then(|()| read_frame::<Reply>(stream));
    match answer {
        Ok(Some(Reply::Error { error, .. })) => Err(error),
        Ok(Some(reply)) => Ok(reply),
        Ok(None) | Err(FrameError::Io(_)) => Err(match process.state().ended_within(EXIT_PATIENCE) {
            Some(how) => engine_failure(format!("it exited with {how} before it was ready")),
            None => engine_failure("it closed its connection before it was ready"),
        }),
        Err(error) => Err(error.into()),
    }
}

fn unexpected(asked: &str, reply: &Reply) -> Failure {
    let start: String = format!("{reply:?}").chars().take(80).collect();
    engine_failure(format!("it answered `{asked}` with {start}"))
}

fn with_log(failure: Failure, process: &protocol::EngineProcess) -> Failure {
    match process.state().log_tail() {
        tail if tail.is_empty() => failure,
        tail => Failure { message: format!("{}; its log ends with:\n{tail}", failure.message), ..failure },
    }
}

fn engine_failure(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Engine, message)
}

struct SocketSink(UnixStream);

impl RequestSink for SocketSink {
    fn send(&mut self, request: &Request) -> Result<(), Failure> {
        write_frame(&mut self.0, request).map_err(Failure::from)
    }
}

struct SocketSource(UnixStream);

impl ReplySource for SocketSource {
    fn receive(&mut self) -> Result<Option<Reply>, Failure> {
        read_frame::<Reply>(&mut self.0).map_err(Failure::from)
    }
}

struct HostProcess(protocol::EngineProcess);

impl EngineProcess for HostProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.0.pid())
    }

    fn wait(&mut self, patience: Duration) -> Option<String> {
        self.0.state().ended_within(patience).map(|how| format!("it exited with {how}"))
    }

    fn kill(&mut self) {
        self.0.kill();
    }
}
