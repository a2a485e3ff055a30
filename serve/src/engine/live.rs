//! The generations one host is running, and the way of their replies to async code.
//!
//! The reader thread of a host must never wait for a client: each generation has a bounded mailbox, and one whose client
//! leaves it crowded for too long (or lets it run full) is cut off and cancelled. A [`Live`] table belongs to one host;
//! when the host is lost the table is closed under its lock, so that no generation can slip in afterwards and wait for
//! ever. Dropping an [`EngineStream`] cancels its generation at the engine, whatever the reason for the drop.

use crit_core::error::{ErrorKind, Failure};
use crit_core::protocol::{FinishReason, Reply, Request, TokenLogprobs, Usage};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as thread_channel};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Why a generation ended without finishing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineFault {
    /// The host is gone: crashed, hung and was killed, or answered outside the protocol.
    #[error("the engine was lost while it worked on this request: {0}")]
    Lost(String),
    /// The engine refused or failed this request only.
    #[error("{0}")]
    Refused(Failure),
    /// The client did not read what was generated for it.
    #[error("the client read too slowly and its generation was cut off")]
    SlowClient,
    /// The server stops and the time for running requests is over.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// What a generation yields.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// Some tokens.
    Tokens {
        /// When they arrived.
        at: Instant,
        /// Token ids, in order.
        tokens: Vec<u32>,
        /// One entry a token if log-probs were asked for, else empty.
        logprobs: Vec<TokenLogprobs>,
    },
    /// The end, with what it took.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The end, with why it did not finish.
    Failed(EngineFault),
}

/// Bounds of a mailbox.
#[derive(Clone, Copy, Debug)]
pub struct MailboxLimits {
    /// Events it holds.
    pub events: usize,
    /// How long it may stay more than half full.
    pub crowded_for: Duration,
}

/// What the dispatch of a reply tells the supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Dispatched {
    /// A sign of progress of the engine.
    Progress,
    /// A generation ended, and what it took.
    Ended(Option<Usage>),
    /// Not about a generation.
    Other(Box<Reply>),
}

struct Mailbox {
    events: mpsc::Sender<EngineEvent>,
    crowded_since: Option<Instant>,
}

#[derive(Default)]
struct Table {
    mailboxes: HashMap<u64, Mailbox>,
    closed: Option<EngineFault>,
}

/// The generations of one host.
pub struct Live {
    table: Mutex<Table>,
    next_id: AtomicU64,
    requests: thread_channel::Sender<Request>,
    limits: MailboxLimits,
}

impl Live {
    /// An empty table whose requests go to `requests`.
    pub fn new(requests: thread_channel::Sender<Request>, limits: MailboxLimits) -> Self {
        Self { table: Mutex::default(), next_id: AtomicU64::new(1), requests, limits }
    }

    /// An id no other request of this host has.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// How many generations are running or waiting.
    pub fn len(&self) -> usize {
        self.lock().mailboxes.len()
    }

    /// Whether nothing is running or waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts a generation. `request` makes the message for an id.
    ///
    /// # Errors
    /// The host is gone; the request was not sent.
    pub fn submit(self: &Arc<Self>, request: impl FnOnce(u64) -> Request) -> Result<EngineStream, EngineFault> {
        let (sender, events) = mpsc::channel(self.limits.events.max(2));
        let id = self.next_id();
        let mut table = self.lock();
        if let Some(fault) = &table.closed {
            return Err(fault.clone());
        }
        table.mailboxes.insert(id, Mailbox { events: sender, crowded_since: None });
        drop(table);
        self.send(request(id));
        Ok(EngineStream { id, events, live: Arc::clone(self), ended: false })
    }

    /// Sends a request that no generation waits for.
    pub fn send(&self, request: Request) {
        // A writer that is gone means a lost host: the supervisor closes the table, and with it every generation.
        let _ = self.requests.send(request);
    }

    /// Takes a reply to its generation. Never waits.
    pub fn dispatch(&self, reply: Reply) -> Dispatched {
        match reply {
            Reply::Tokens { id, tokens, logprobs } => {
                self.deliver(id, EngineEvent::Tokens { at: Instant::now(), tokens, logprobs });
                Dispatched::Progress
            }
            Reply::Finished { id, reason, usage } => {
                self.end(id, EngineEvent::Finished { reason, usage });
                Dispatched::Ended(Some(usage))
            }
            Reply::Error { id: Some(id), error } if self.holds(id) => {
                self.end(id, EngineEvent::Failed(EngineFault::Refused(error)));
                Dispatched::Ended(None)
            }
            other => Dispatched::Other(Box::new(other)),
        }
    }

    /// Ends every generation with `fault` and refuses new ones.
    pub fn close(&self, fault: EngineFault) {
        let mut table = self.lock();
        table.closed.get_or_insert_with(|| fault.clone());
        for (_, mailbox) in table.mailboxes.drain() {
            // A full mailbox drops the event; its stream then finds the table closed and reports the same fault.
            let _ = mailbox.events.try_send(EngineEvent::Failed(fault.clone()));
        }
    }

    fn deliver(&self, id: u64, event: EngineEvent) {
        let mut table = self.lock();
        let Some(mailbox) = table.mailboxes.get_mut(&id) else { return };
        let full = mailbox.events.try_send(event).is_err();
        if full || mailbox.crowded_too_long(self.limits.crowded_for) {
            table.mailboxes.remove(&id);
            drop(table);
            self.send(Request::Cancel { id });
        }
    }

    fn end(&self, id: u64, event: EngineEvent) {
        if let Some(mailbox) = self.lock().mailboxes.remove(&id) {
            let _ = mailbox.events.try_send(event);
        }
    }

    fn holds(&self, id: u64) -> bool {
        self.lock().mailboxes.contains_key(&id)
    }

    fn forget(&self, id: u64) -> bool {
        self.lock().mailboxes.remove(&id).is_some()
    }

    fn why_cut(&self) -> EngineFault {
        self.lock().closed.clone().unwrap_or(EngineFault::SlowClient)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    fn crowded_too_long(&mut self, limit: Duration) -> bool {
        if self.events.capacity() >= self.events.max_capacity() / 2 {
            self.crowded_since = None;
            return false;
        }
        self.crowded_since.get_or_insert_with(Instant::now).elapsed() > limit
    }
}

/// The events of one generation. Dropped before its end, it cancels the generation.
pub struct EngineStream {
    id: u64,
    events: mpsc::Receiver<EngineEvent>,
    live: Arc<Live>,
    ended: bool,
}

impl EngineStream {
    /// The next event. After an end (`Finished` or `Failed`) it must not be polled again.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<EngineEvent> {
        let event = ready!(self.events.poll_recv(context));
        let event = event.unwrap_or_else(|| EngineEvent::Failed(self.live.why_cut()));
        self.ended |= !matches!(event, EngineEvent::Tokens { .. });
        Poll::Ready(event)
    }

    /// Asks the engine to stop; the events still end with `Finished`.
    pub fn cancel(&self) {
        self.live.send(Request::Cancel { id: self.id });
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        if !self.ended && self.live.forget(self.id) {
            self.cancel();
        }
    }
}

/// Whether a failure of the engine says that it has no room now, so that the same request may succeed later.
pub fn is_overload(failure: &Failure) -> bool {
    failure.kind == ErrorKind::Environment
}
