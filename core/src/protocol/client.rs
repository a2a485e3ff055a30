//! The client's side: one connection, many requests.
//!
//! A reader thread hands each reply to the request it belongs to. When the connection ends, every open request gets an
//! error that says how the engine ended and what was going on; no wait outlives that, and each has a bound of its own
//! for an engine that is alive and silent. A [`Client`] is cheap to clone and may be used from many threads.

use super::frame::{FrameError, read_frame, write_frame};
use super::ring::{Ring, RingError};
use super::spawn::ProcessState;
use super::{
    EngineInfo, EngineStats, FinishReason, Generate, PROTOCOL_VERSION, Reply, Request, ScorePlan, ScoreRow,
    TokenLogprobs, Usage,
};
use crate::error::{Diagnose, ErrorKind, Failure};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a request to an engine failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers on the socket.
    #[error("no engine answers on {socket} after {waited_ms} ms: {cause}")]
    Connect {
        /// The socket.
        socket: String,
        /// How long was tried.
        waited_ms: u64,
        /// What the last try gave.
        cause: String,
    },
    /// The engine process ended.
    #[error("engine exited with {how} while {during}")]
    Exited {
        /// Status or signal.
        how: String,
        /// What was going on.
        during: String,
    },
    /// The engine closed the connection.
    #[error("the engine closed the connection while {during}: {cause}")]
    Disconnected {
        /// What was going on.
        during: String,
        /// What the socket said.
        cause: String,
    },
    /// The engine is there but does not answer.
    #[error("the engine gave no answer for {waited_ms} ms while {during}")]
    Silent {
        /// How long was waited.
        waited_ms: u64,
        /// What was going on.
        during: String,
    },
    /// The engine answered something else.
    #[error("the engine broke the protocol while {during}: {problem}")]
    Protocol {
        /// What was going on.
        during: String,
        /// What it did.
        problem: String,
    },
    /// The request cannot be put into a message, or its shared memory cannot be used.
    #[error("cannot send the request: {message}")]
    Local {
        /// Why.
        message: String,
    },
    /// The engine refused or failed the request.
    #[error(transparent)]
    Refused(#[from] Failure),
}

impl Diagnose for ClientError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(failure) => failure.kind,
            Self::Local { .. } => ErrorKind::Environment,
            _ => ErrorKind::Engine,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(failure) => failure.hint.clone(),
            Self::Exited { .. } => Some("the engine's log tells more; start the engine again".into()),
            _ => None,
        }
    }
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Who calls, for the engine's log.
    pub client: String,
    /// How long to try to connect.
    pub connect_timeout: Duration,
    /// Longest wait for an answer to `info` and `stats`.
    pub answer_timeout: Duration,
    /// Longest silence while a generation or a score goes on.
    pub stall_timeout: Duration,
    /// The process behind the socket, if it was started here.
    pub process: Option<Arc<ProcessState>>,
}

impl ConnectOptions {
    /// 10 s to connect, 60 s for an answer, 10 min of silence.
    pub fn new(client: impl Into<String>) -> Self {
        Self {
            client: client.into(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(600),
            process: None,
        }
    }
}

/// What comes of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEvent {
    /// New tokens.
    Tokens {
        /// Token ids.
        tokens: Vec<u32>,
        /// One entry a token if asked for, else empty.
        logprobs: Vec<TokenLogprobs>,
    },
    /// It ended; nothing follows.
    Finished {
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
}

/// A whole generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// One entry a token if asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}

type Answer = Result<Reply, ClientError>;

/// An open request: what it is, and where its replies go.
struct Waiter {
    during: &'static str,
    sink: Box<dyn FnMut(Answer) + Send>,
}

#[derive(Default)]
struct Open {
    waiters: HashMap<u64, Waiter>,
    /// Why the connection is over, for requests that come too late.
    over: Option<Over>,
}

#[derive(Clone)]
enum Over {
    Exited(String),
    Disconnected(String),
    Failed(Failure),
}

impl Over {
    fn while_(&self, during: &str) -> ClientError {
        let during = during.to_string();
        match self {
            Self::Exited(how) => ClientError::Exited { how: how.clone(), during },
            Self::Disconnected(cause) => ClientError::Disconnected { during, cause: cause.clone() },
            Self::Failed(failure) => ClientError::Refused(failure.clone()),
        }
    }
}

struct Shared {
    open: Mutex<Open>,
    process: Option<Arc<ProcessState>>,
}

/// Id under which the answer to `close` is awaited; requests count up from 1.
const CLOSE_ID: u64 = 0;

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: u64, waiter: Waiter) -> Result<(), ClientError> {
        let mut open = self.open();
        if let Some(over) = &open.over {
            return Err(over.while_(waiter.during));
        }
        open.waiters.insert(id, waiter);
        Ok(())
    }

    /// Hands a reply to its request. The lock is not held meanwhile, so that a sink may use the client.
    fn deliver(&self, id: u64, reply: Reply) {
        let ends = !matches!(reply, Reply::Tokens { .. } | Reply::ScoreChunk { .. });
        let waiter = self.open().waiters.remove(&id);
        if let Some(mut waiter) = waiter {
            let answer = match reply {
                Reply::Error { error, .. } => Err(ClientError::Refused(error)),
                reply => Ok(reply),
            };
            (waiter.sink)(answer);
            if !ends {
                self.open().waiters.insert(id, waiter);
            }
        }
    }

    /// Ends all open requests.
    fn finish(&self, over: Over) {
        let waiters = {
            let mut open = self.open();
            open.over.get_or_insert(over.clone());
            std::mem::take(&mut open.waiters)
        };
        for (_, mut waiter) in waiters {
            (waiter.sink)(Err(over.while_(waiter.during)));
        }
    }

    fn read_replies(&self, mut stream: UnixStream) {
        let over = loop {
            match read_frame::<Reply>(&mut stream) {
                Ok(Some(Reply::Closed)) => self.deliver(CLOSE_ID, Reply::Closed),
                Ok(Some(Reply::Error { id: None, error })) => break Over::Failed(error),
                Ok(Some(reply)) => match reply_id(&reply) {
                    Some(id) => self.deliver(id, reply),
                    None => break Over::Disconnected("a second `opened` came".into()),
                },
                Ok(None) => break self.end_of("end of stream".into()),
                Err(FrameError::Io(error)) => break self.end_of(error.to_string()),
                Err(FrameError::Truncated { .. }) => break self.end_of("it ended within a message".into()),
                Err(error) => break Over::Disconnected(error.to_string()),
            }
        };
        let _ = stream.shutdown(std::net::Shutdown::Both);
        self.finish(over);
    }

    /// A killed process closes its socket a moment before its status is there.
    fn end_of(&self, cause: String) -> Over {
        let ended = self.process.as_ref().and_then(|process| process.ended_within(Duration::from_secs(2)));
        ended.map_or(Over::Disconnected(cause), Over::Exited)
    }
}

fn reply_id(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Info { id, .. }
        | Reply::Tokens { id, .. }
        | Reply::Finished { id, .. }
        | Reply::ScoreChunk { id, .. }
        | Reply::ScoreDone { id, .. }
        | Reply::Stats { id, .. } => Some(*id),
        Reply::Error { id, .. } => *id,
        Reply::Opened { .. } | Reply::Closed => None,
    }
}

/// Ends the connection, and with it the reader thread, when the last user is gone.
struct Connection {
    writer: Mutex<UnixStream>,
    next_id: AtomicU64,
    options: ConnectOptions,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let stream = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection to an engine.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Client {
    /// Connects and opens the conversation.
    ///
    /// # Errors
    /// Nobody answers in time, the process ended, or it speaks another version.
    pub fn connect(socket: &Path, options: ConnectOptions) -> Result<Self, ClientError> {
        let stream = dial(socket, &options)?;
        let local = |error: std::io::Error| ClientError::Local { message: error.to_string() };
        stream.set_write_timeout(Some(options.answer_timeout)).map_err(local)?;
        let reader = stream.try_clone().map_err(local)?;
        let shared = Arc::new(Shared { open: Mutex::default(), process: options.process.clone() });
        let for_reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("engine-replies".into())
            .spawn(move || for_reader.read_replies(reader))
            .map_err(local)?;
        let connection = Connection { writer: Mutex::new(stream), next_id: AtomicU64::new(1), options };
        Ok(Self { shared, connection: Arc::new(connection) })
    }

    /// What the engine is.
    ///
    /// # Errors
    /// The engine ended, is silent, or answers something else.
    pub fn info(&self) -> Result<EngineInfo, ClientError> {
        let during = "answering `info`";
        match self.ask(during, |id| Request::Info { id })? {
            Reply::Info { info, .. } => Ok(*info),
            other => Err(unexpected(during, &other)),
        }
    }

    /// Counters of the engine.
    ///
    /// # Errors
    /// The engine ended, is silent, or answers something else.
    pub fn stats(&self) -> Result<EngineStats, ClientError> {
        let during = "answering `stats`";
        match self.ask(during, |id| Request::Stats { id, brief: false })? {
            Reply::Stats { stats, .. } => Ok(*stats),
            other => Err(unexpected(during, &other)),
        }
    }

    /// Starts a generation.
    ///
    /// # Errors
    /// The engine ended. A refusal comes as the first event.
    pub fn submit(&self, generate: Generate) -> Result<Generation, ClientError> {
        let (sender, events) = mpsc::channel();
        let id = self.submit_with(generate, move |event| {
            let _ = sender.send(event);
        })?;
        Ok(Generation { client: self.clone(), id, events, done: false })
    }

    /// Starts a generation whose events are given to `sink`, on a thread of the client, until one is `Finished` or an
    /// error. Returns its id. The sink must not wait: it holds up all requests of the connection.
    ///
    /// # Errors
    /// The engine ended. A refusal comes as the first event.
    pub fn submit_with(
        &self,
        generate: Generate,
        mut sink: impl FnMut(Result<GenerationEvent, ClientError>) + Send + 'static,
    ) -> Result<u64, ClientError> {
        let during = "generating";
        let sink = move |answer: Answer| {
            sink(match answer {
                Ok(Reply::Tokens { tokens, logprobs, .. }) => Ok(GenerationEvent::Tokens { tokens, logprobs }),
                Ok(Reply::Finished { reason, usage, .. }) => Ok(GenerationEvent::Finished { reason, usage }),
                Ok(other) => Err(unexpected(during, &other)),
                Err(error) => Err(error),
            });
        };
        self.begin(during, Box::new(sink), |id| Request::Submit { id, generate })
    }

    /// Asks to end a generation or a score; its last event tells that it has.
    ///
    /// # Errors
    /// The engine ended.
    pub fn cancel(&self, id: u64) -> Result<(), ClientError> {
        self.send(&Request::Cancel { id }, "cancelling")
    }

    /// Runs a scoring plan. `on_chunk` gets the rows as they come, what each is and its log-probs, `[rows, vocab]`.
    /// Returns how many positions each sequence took from the prefix cache.
    ///
    /// # Errors
    /// The plan is refused, the engine ended, is silent, or answers something else.
    pub fn score(
        &self,
        plan: &ScorePlan,
        vocab: usize,
        mut on_chunk: impl FnMut(&[ScoreRow], &[f32]),
    ) -> Result<Vec<u32>, ClientError> {
        let during = "scoring";
        let mut ring = ring_for(vocab)?;
        let path = ring.path().to_string_lossy().into_owned();
        let (slots, slot_bytes, plan) = (ring.slots(), ring.slot_bytes(), plan.clone());
        let (sender, answers) = mpsc::channel();
        let sink = move |answer| {
            let _ = sender.send(answer);
        };
        let request = |id| Request::Score { id, plan, ring: path, slots, slot_bytes };
        let id = self.begin(during, Box::new(sink), request)?;
        // Should `on_chunk` panic, or a bound be reached, the engine must not go on.
        let mut guard = CancelOnDrop { client: self, id, done: false };
        let mut values: Vec<f32> = Vec::new();
        loop {
            let answer = wait(&answers, self.connection.options.stall_timeout, during);
            // The engine has it open now, or never will.
            ring.unlink();
            match answer {
                Ok(Reply::ScoreChunk { chunk, slot, rows, .. }) => {
                    values.resize(rows.len().saturating_mul(vocab).min((slot_bytes / 4) as usize), 0.0);
                    if values.len() != rows.len() * vocab {
                        let problem = format!("a chunk of {} rows is larger than its area", rows.len());
                        return Err(ClientError::Protocol { during: during.into(), problem });
                    }
                    ring.read(slot, &mut values).map_err(|error| local(&error))?;
                    self.send(&Request::ScoreAck { id, chunk }, during)?;
                    on_chunk(&rows, &values);
                }
                Ok(Reply::ScoreDone { prefix_hits, .. }) => {
                    guard.done = true;
                    return Ok(prefix_hits);
                }
                Ok(other) => return Err(unexpected(during, &other)),
                Err(error) => {
                    guard.done = !matches!(error, ClientError::Silent { .. });
                    return Err(error);
                }
            }
        }
    }

    /// Asks the engine to finish what runs and exit, and waits for at most `timeout` until it says so.
    ///
    /// # Errors
    /// It ended otherwise or not in time.
    pub fn close(&self, timeout: Duration) -> Result<(), ClientError> {
        let during = "closing";
        let (sender, answers) = mpsc::channel();
        let sink = Box::new(move |answer| {
            let _ = sender.send(answer);
        });
        self.shared.add(CLOSE_ID, Waiter { during, sink })?;
        self.send(&Request::Close, during)?;
        match wait(&answers, timeout, during)? {
            Reply::Closed => Ok(()),
            other => Err(unexpected(during, &other)),
        }
    }

    /// Sends a request and returns its id; its replies go to `sink`.
    fn begin(
        &self,
        during: &'static str,
        sink: Box<dyn FnMut(Answer) + Send>,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<u64, ClientError> {
        let id = self.connection.next_id.fetch_add(1, Ordering::Relaxed);
        self.shared.add(id, Waiter { during, sink })?;
        if let Err(error) = self.send(&request(id), during) {
            self.shared.open().waiters.remove(&id);
            return Err(error);
        }
        Ok(id)
    }

    /// Sends a request and waits for its one answer.
    fn ask(&self, during: &'static str, request: impl FnOnce(u64) -> Request) -> Answer {
        let (sender, answers) = mpsc::channel();
        let sink = move |answer| {
            let _ = sender.send(answer);
        };
        let id = self.begin(during, Box::new(sink), request)?;
        wait(&answers, self.connection.options.answer_timeout, during).inspect_err(|_| {
            self.shared.open().waiters.remove(&id);
        })
    }

    fn send(&self, request: &Request, during: &'static str) -> Result<(), ClientError> {
        let mut stream = self.connection.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match write_frame(&mut *stream, request) {
            Ok(()) => Ok(()),
            Err(FrameError::Io(error)) => {
                // A frame may be half written: nothing sensible can follow it.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                drop(stream);
                let over = self.shared.end_of(error.to_string());
                let known = self.shared.open().over.clone();
                Err(known.unwrap_or(over).while_(during))
            }
            Err(error) => Err(local(&error)),
        }
    }
}

struct CancelOnDrop<'a> {
    client: &'a Client,
    id: u64,
    done: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.client.cancel(self.id);
        }
    }
}

/// A generation on its way: an iterator over its events that ends after `Finished` or an error. Dropping it earlier
/// cancels the generation.
pub struct Generation {
    client: Client,
    id: u64,
    events: Receiver<Result<GenerationEvent, ClientError>>,
    done: bool,
}

impl Generation {
    /// Its id, for [`Client::cancel`].
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event, waiting at most `timeout`; `None` after the last.
    ///
    /// # Errors
    /// The generation failed, the engine ended or was silent for so long.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<GenerationEvent>, ClientError> {
        if self.done {
            return Ok(None);
        }
        let event = wait(&self.events, timeout, "generating");
        self.done = match &event {
            Ok(event) => matches!(event, GenerationEvent::Finished { .. }),
            Err(error) => !matches!(error, ClientError::Silent { .. }),
        };
        event.map(Some)
    }

    /// Asks to end it; the events that are left, up to `Finished`, still come.
    ///
    /// # Errors
    /// The engine ended.
    pub fn cancel(&self) -> Result<(), ClientError> {
        self.client.cancel(self.id)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The generation failed or the engine ended.
    pub fn finish(mut self) -> Result<Generated, ClientError> {
        let (mut all_tokens, mut all_logprobs) = (Vec::new(), Vec::new());
        let timeout = self.client.connection.options.stall_timeout;
        loop {
            match self.next_within(timeout)? {
                Some(GenerationEvent::Tokens { tokens, logprobs }) => {
                    all_tokens.extend(tokens);
                    all_logprobs.extend(logprobs);
                }
                Some(GenerationEvent::Finished { reason, usage }) => {
                    return Ok(Generated { tokens: all_tokens, logprobs: all_logprobs, reason, usage });
                }
                None => {
                    let problem = "nothing came after the end".to_string();
                    return Err(ClientError::Protocol { during: "generating".into(), problem });
                }
            }
        }
    }
}

impl Iterator for Generation {
    type Item = Result<GenerationEvent, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        let timeout = self.client.connection.options.stall_timeout;
        match self.next_within(timeout) {
            Ok(event) => event.map(Ok),
            Err(error) => {
                // A caller that goes on after an error must not wait again.
                self.done = true;
                let _ = self.client.cancel(self.id);
                Some(Err(error))
            }
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.client.cancel(self.id);
        }
    }
}

/// Connects within the time, then exchanges `open` and `opened`.
fn dial(socket: &Path, options: &ConnectOptions) -> Result<UnixStream, ClientError> {
    let start = Instant::now();
    let during = "starting";
    let left = || options.connect_timeout.saturating_sub(start.elapsed());
    let mut stream = loop {
        let cause = match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => error.to_string(),
        };
        if let Some(how) = options.process.as_ref().and_then(|process| process.ended_within(Duration::ZERO)) {
            return Err(ClientError::Exited { how, during: during.into() });
        }
        if left().is_zero() {
            let waited_ms = start.elapsed().as_millis() as u64;
            return Err(ClientError::Connect { socket: socket.display().to_string(), waited_ms, cause });
        }
        std::thread::sleep(Duration::from_millis(10).min(left()));
    };
    let failed = |error: FrameError| {
        let process = options.process.as_ref();
        match process.and_then(|process| process.ended_within(Duration::from_secs(1))) {
            Some(how) => ClientError::Exited { how, during: during.into() },
            None => ClientError::Disconnected { during: during.into(), cause: error.to_string() },
        }
    };
    // The engine may have to finish a step before it can answer.
    let patience = left().max(Duration::from_secs(1));
    stream.set_read_timeout(Some(patience)).map_err(|error| failed(error.into()))?;
    let open = Request::Open { protocol: PROTOCOL_VERSION, client: options.client.clone() };
    write_frame(&mut stream, &open).map_err(failed)?;
    let reply = match read_frame::<Reply>(&mut stream) {
        Err(FrameError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
            let waited_ms = patience.as_millis() as u64;
            return Err(ClientError::Silent { waited_ms, during: during.into() });
        }
        other => other.map_err(failed)?,
    };
    stream.set_read_timeout(None).map_err(|error| failed(error.into()))?;
    match reply {
        Some(Reply::Opened { protocol: PROTOCOL_VERSION, .. }) => Ok(stream),
        Some(Reply::Opened { protocol, engine }) => Err(ClientError::Protocol {
            during: during.into(),
            problem: format!("{engine} speaks version {protocol}, this side {PROTOCOL_VERSION}"),
        }),
        Some(Reply::Error { error, .. }) => Err(ClientError::Refused(error)),
        Some(other) => Err(unexpected(during, &other)),
        None => Err(failed(FrameError::Truncated { missing: 4 })),
    }
}

/// A ring for rows of this width: two areas of about 16 MiB, so that one is filled while the other is read.
fn ring_for(vocab: usize) -> Result<Ring, ClientError> {
    let row_bytes = (vocab as u64).saturating_mul(4);
    let rows = ((16 << 20) / row_bytes.max(1)).max(1);
    Ring::create(2, row_bytes.saturating_mul(rows)).map_err(|error: RingError| local(&error))
}

fn local(error: &dyn std::error::Error) -> ClientError {
    ClientError::Local { message: error.to_string() }
}

fn unexpected(during: &str, reply: &Reply) -> ClientError {
    let mut problem = format!("unexpected {reply:?}");
    if problem.len() > 200 {
        problem = problem.chars().take(200).collect::<String>() + "…";
    }
    ClientError::Protocol { during: during.into(), problem }
}

fn wait<T>(
    answers: &Receiver<Result<T, ClientError>>,
    timeout: Duration,
    during: &'static str,
) -> Result<T, ClientError> {
    match answers.recv_timeout(timeout) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => {
            Err(ClientError::Silent { waited_ms: timeout.as_millis() as u64, during: during.into() })
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(ClientError::Disconnected { during: during.into(), cause: "its replies are over".into() })
        }
    }
}
