//! Starting an engine process and knowing how it ended.
//!
//! An engine is any command that listens on the Unix socket named in `CRIT_ENGINE_SOCKET`. It gets no stdin, its output
//! goes to a log file, it has a process group of its own, and it is killed, with everything it started, when its
//! [`EngineProcess`] is dropped. Should this process die before that, an engine notices by `CRIT_ENGINE_PARENT`.

use super::client::{Client, ClientError, ConnectOptions};
use crate::error::{Diagnose, ErrorKind};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Environment variable: the socket an engine listens on.
pub const SOCKET_ENV: &str = "CRIT_ENGINE_SOCKET";

/// Environment variable: the `engine.json` of the engine, if there is one.
pub const CONFIG_ENV: &str = "CRIT_ENGINE_CONFIG";

/// Environment variable: id of the process that started the engine. An engine exits when that is gone.
pub const PARENT_ENV: &str = "CRIT_ENGINE_PARENT";

/// Longest path a Unix socket can have everywhere.
const SOCKET_PATH_BYTES: usize = 100;

/// What of an engine's log an error shows: enough for a message with its stack.
const LOG_TAIL_BYTES: u64 = 4096;
const LOG_TAIL_LINES: usize = 40;

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct EngineCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; `{socket}` and `{config}` in them are replaced by the paths.
    pub args: Vec<OsString>,
    /// Environment variables on top of this process's own.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory, if another.
    pub dir: Option<PathBuf>,
    /// The `engine.json` it is to run.
    pub config: Option<PathBuf>,
    /// Where its output goes; the file is made anew.
    pub log: PathBuf,
}

/// Why an engine does not run.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command cannot be started.
    #[error("cannot start engine {program}: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file it needs cannot be made.
    #[error("cannot make {path} for the engine: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It did not come up.
    #[error("engine {program} did not come up: {source}{}", shown(.log_tail))]
    NotReady {
        /// The program.
        program: PathBuf,
        /// Why.
        source: ClientError,
        /// End of its log.
        log_tail: String,
    },
}

fn shown(log_tail: &str) -> String {
    if log_tail.is_empty() { String::new() } else { format!("; its log ends with:\n{log_tail}") }
}

impl Diagnose for SpawnError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Start { .. } => ErrorKind::Input,
            Self::File { .. } => ErrorKind::Environment,
            Self::NotReady { .. } => ErrorKind::Engine,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Start { .. } => Some("check the `command` in engine.json".into()),
            Self::NotReady { .. } => {
                Some("start the program by hand to see what it says; it must serve the engine protocol".into())
            }
            Self::File { .. } => None,
        }
    }
}

/// What can be told of an engine process by anyone who talks to it.
#[derive(Debug)]
pub struct ProcessState {
    child: Mutex<(Child, Option<ExitStatus>)>,
    pid: u32,
    log: PathBuf,
}

impl ProcessState {
    /// How it ended, in words, waiting at most `wait` for the end.
    pub fn ended_within(&self, wait: Duration) -> Option<String> {
        let until = Instant::now() + wait;
        loop {
            if let Some(status) = self.poll() {
                return Some(describe(status));
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last lines it wrote.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log).unwrap_or_default()
    }

    fn poll(&self) -> Option<ExitStatus> {
        let mut guard = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.1.is_none() {
            guard.1 = guard.0.try_wait().ok().flatten();
            if guard.1.is_some() {
                // What it left behind goes with it, while the group's number is certainly its own.
                self.kill_group();
            }
        }
        guard.1
    }

    fn kill_group(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = pid {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(9)) => "signal 9 (killed; the system does that when memory runs out)".into(),
        (None, Some(11)) => "signal 11 (invalid memory access)".into(),
        (None, Some(6)) => "signal 6 (aborted)".into(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".into(),
    }
}

/// A running engine; killed when dropped.
#[derive(Debug)]
pub struct EngineProcess {
    state: Arc<ProcessState>,
    program: PathBuf,
    folder: PathBuf,
    socket: PathBuf,
}

impl EngineProcess {
    /// Starts the command; the engine may not be ready yet.
    ///
    /// # Errors
    /// The command or a file it needs cannot be made.
    pub fn spawn(command: &EngineCommand) -> Result<Self, SpawnError> {
        let folder = socket_folder()?;
        let socket = folder.join("s");
        let child = start(command, &socket).inspect_err(|_| {
            let _ = std::fs::remove_dir_all(&folder);
        })?;
        let pid = child.id();
        let state = Arc::new(ProcessState { child: Mutex::new((child, None)), pid, log: command.log.clone() });
        Ok(Self { state, program: command.program.clone(), folder, socket })
    }

    /// Starts the command and connects to it as soon as it answers, for at most `ready_timeout`.
    ///
    /// # Errors
    /// It cannot be started, ended, or did not answer in time; the error then shows the end of its log.
    pub fn start(command: &EngineCommand, client: &str, ready_timeout: Duration) -> Result<(Self, Client), SpawnError> {
        let process = Self::spawn(command)?;
        let options = ConnectOptions { connect_timeout: ready_timeout, ..ConnectOptions::new(client) };
        match process.connect(options) {
            Ok(client) => Ok((process, client)),
            Err(source) => Err(SpawnError::NotReady {
                program: process.program.clone(),
                source,
                log_tail: process.state.log_tail(),
            }),
        }
    }

    /// Connects to it.
    ///
    /// # Errors
    /// It ended, or did not answer in time.
    pub fn connect(&self, mut options: ConnectOptions) -> Result<Client, ClientError> {
        options.process = Some(Arc::clone(&self.state));
        Client::connect(&self.socket, options)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.state.pid
    }

    /// The socket it listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What can be told of it.
    pub fn state(&self) -> &ProcessState {
        &self.state
    }

    /// Kills it and everything it started, and waits until it is gone.
    pub fn kill(&self) {
        if self.state.poll().is_none() {
            self.state.kill_group();
            self.state.ended_within(Duration::from_secs(10));
        }
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn start(command: &EngineCommand, socket: &Path) -> Result<Child, SpawnError> {
    let log_error = |source| SpawnError::File { path: command.log.clone(), source };
    let log = File::create(&command.log).map_err(log_error)?;
    let log_too = log.try_clone().map_err(log_error)?;
    let mut child = Command::new(&command.program);
    child
        .args(command.args.iter().map(|arg| fill_in(arg, socket, command.config.as_deref())))
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .env(SOCKET_ENV, socket)
        .env(PARENT_ENV, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .process_group(0);
    match &command.config {
        Some(config) => child.env(CONFIG_ENV, config),
        None => child.env_remove(CONFIG_ENV),
    };
    if let Some(dir) = &command.dir {
        child.current_dir(dir);
    }
    child.spawn().map_err(|source| SpawnError::Start { program: command.program.clone(), source })
}

fn fill_in(arg: &OsStr, socket: &Path, config: Option<&Path>) -> OsString {
    match (arg.to_str(), config) {
        (Some("{socket}"), _) => socket.into(),
        (Some("{config}"), Some(config)) => config.into(),
        (Some(text), _) if text.contains("{socket}") => text.replace("{socket}", &socket.to_string_lossy()).into(),
        (Some(text), Some(config)) => text.replace("{config}", &config.to_string_lossy()).into(),
        _ => arg.to_os_string(),
    }
}

/// A folder only this user can enter, with a path short enough for a socket in it.
fn socket_folder() -> Result<PathBuf, SpawnError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("crit-{}-{count}-{since:x}", std::process::id());
    let mut path = std::env::temp_dir().join(&name);
    if path.as_os_str().len() + 2 > SOCKET_PATH_BYTES {
        path = Path::new("/tmp").join(&name);
    }
    match DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(SpawnError::File { path, source }),
    }
}

fn log_tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    Ok(lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"))
}
