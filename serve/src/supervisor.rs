//! Owns the engine host: starts it, notices that it died or hangs, restarts it, and ends it with the server.
//!
//! One thread does this for the life of the server; each host has two more, a writer and a reader, that end with its
//! connection. Async code sees only [`EngineState`] and a [`Host`]'s live table. A lost host is never hidden: its
//! generations end with the reason, and only requests that had not reached it wait for the next one.
//!
//! Progress is any token, any end of a generation, and any change of the engine's own counters. The counters matter
//! because a long prompt makes no tokens for a while.

use crate::config::{Limits, Supervision};
use crate::engine::link::StopFlag;
use crate::engine::live::{Dispatched, Live, MailboxLimits};
use crate::engine::{EngineFault, EngineLauncher, EngineLink, EngineProcess, EngineStream, ReplySource, RequestSink};
use crate::metrics::{EngineGauges, Metrics};
use crit_core::error::Failure;
use crit_core::protocol::{EngineInfo, EngineStats, Reply, Request, Usage};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long an exit status is waited for once the connection is gone.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Where the engine stands.
#[derive(Clone)]
pub enum EngineState {
    /// The first host loads.
    Loading,
    /// A host is up.
    Ready(Arc<Host>),
    /// A host was lost and the next one is on its way.
    Restarting {
        /// Why it was lost.
        reason: String,
    },
    /// The first host did not come up.
    Refused(Failure),
    /// No host could be brought back.
    Lost {
        /// Restarts tried.
        attempts: u32,
        /// Why the last one was lost.
        reason: String,
    },
    /// The server stopped it.
    Stopped,
}

impl EngineState {
    /// Whether no host will ever come.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Lost { .. } | Self::Stopped)
    }
}

/// A host that is up, as async code sees it.
pub struct Host {
    /// What the engine is.
    pub info: EngineInfo,
    /// Its process id.
    pub pid: Option<u32>,
    live: Arc<Live>,
    stats: Mutex<EngineStats>,
    born: Instant,
    progress_us: AtomicU64,
    served: AtomicBool,
    stats_pending: AtomicBool,
}

impl Host {
    /// Starts a generation.
    ///
    /// # Errors
    /// The host is gone.
    pub fn submit(&self, request: impl FnOnce(u64) -> Request) -> Result<EngineStream, EngineFault> {
        if self.live.is_empty() {
            // Idle time is no lack of progress.
            self.touch();
        }
        self.live.submit(request)
    }

    /// How many generations run or wait.
    pub fn generations(&self) -> usize {
        self.live.len()
    }

    fn gauges(&self) -> EngineGauges {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = !self.live.is_empty();
        EngineGauges {
            up: true,
            running: if busy { stats.running } else { 0 },
            waiting: if busy { stats.waiting } else { 0 },
            kv_blocks_used: stats.blocks_used,
            kv_blocks: stats.blocks,
        }
    }

    fn touch(&self) {
        let micros = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.progress_us.fetch_max(micros, Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_micros(self.progress_us.load(Ordering::Relaxed)))
    }
}

enum Order {
    Lost { serial: u64, reason: String },
    Stop,
}

/// How the watch over a host ended.
enum Ending {
    Stop,
    Lost(String),
}

/// The handle of the supervising thread.
pub struct Supervisor {
    state: watch::Receiver<EngineState>,
    orders: mpsc::Sender<Order>,
    stop: StopFlag,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the thread, which starts the first host.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn start(
        launcher: Arc<dyn EngineLauncher>,
        settings: Supervision,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let (state_sender, state) = watch::channel(EngineState::Loading);
        let (orders, inbox) = mpsc::channel();
        let stop = StopFlag::default();
        let mailbox = MailboxLimits { events: limits.backlog_events, crowded_for: limits.slow_client };
        let keeper = Keeper {
            launcher,
            settings,
            mailbox,
            metrics,
            state: state_sender,
            orders: orders.clone(),
            inbox,
            stop: stop.clone(),
        };
        let thread = thread::Builder::new().name("engine-supervisor".into()).spawn(move || keeper.run())?;
        Ok(Self { state, orders, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Where the engine stands, and every change of it.
    pub fn state(&self) -> watch::Receiver<EngineState> {
        self.state.clone()
    }

    /// The host that is up, if one is.
    pub fn host(&self) -> Option<Arc<Host>> {
        match &*self.state.borrow() {
            EngineState::Ready(host) => Some(Arc::clone(host)),
            _ => None,
        }
    }

    /// What the gauges show.
    pub fn gauges(&self) -> EngineGauges {
        self.host().map_or_else(EngineGauges::default, |host| host.gauges())
    }

    /// Ends all running generations; new ones are refused.
    pub fn end_generations(&self) {
        if let Some(host) = self.host() {
            host.live.close(EngineFault::ShuttingDown);
        }
    }

    /// Ends the host, by force if it does not go by itself, and waits until it is gone. Blocking.
    pub fn stop(&self) {
        self.stop.raise();
        let _ = self.orders.send(Order::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The supervising thread's own view.
struct Keeper {
    launcher: Arc<dyn EngineLauncher>,
    settings: Supervision,
    mailbox: MailboxLimits,
    metrics: Arc<Metrics>,
    state: watch::Sender<EngineState>,
    orders: mpsc::Sender<Order>,
    inbox: mpsc::Receiver<Order>,
    stop: StopFlag,
}

impl Keeper {
    fn run(self) {
        let last = self.keep();
        self.state.send_replace(last);
    }

    /// Keeps a host up until the end; the state that is left.
    fn keep(&self) -> EngineState {
        let mut link = match self.launcher.launch(&self.stop) {
            Ok(link) => link,
            Err(_) if self.stop.raised() => return EngineState::Stopped,
            Err(failure) => return EngineState::Refused(failure),
        };
        let mut serial = 0;
        let mut restarts_in_a_row = 0;
        loop {
            serial += 1;
            let watched = self.watch(link, serial);
            let Some(reason) = watched.lost else { return EngineState::Stopped };
            if watched.healthy {
                restarts_in_a_row = 0;
            }
            link = match self.relaunch(reason, &mut restarts_in_a_row) {
                Ok(link) => link,
                Err(last) => return last,
            };
        }
    }

    /// Tries to start a host again, a bounded number of times in a row.
    fn relaunch(&self, mut reason: String, restarts_in_a_row: &mut u32) -> Result<EngineLink, EngineState> {
        while *restarts_in_a_row < self.settings.max_restarts {
            self.state.send_replace(EngineState::Restarting { reason: reason.clone() });
            if self.stopped_within(self.backoff(*restarts_in_a_row)) {
                return Err(EngineState::Stopped);
            }
            *restarts_in_a_row += 1;
            self.metrics.engine_restarts.add(1);
            match self.launcher.launch(&self.stop) {
                Ok(link) => return Ok(link),
                Err(_) if self.stop.raised() => return Err(EngineState::Stopped),
                Err(failure) => reason = failure.message,
            }
            tracing::error!(reason, "engine did not restart");
        }
        Err(EngineState::Lost { attempts: *restarts_in_a_row, reason })
    }

    fn backoff(&self, restarts: u32) -> Duration {
        self.settings.backoff.saturating_mul(2_u32.saturating_pow(restarts)).min(self.settings.backoff_max)
    }

    /// Waits; whether the order to stop came meanwhile.
    fn stopped_within(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(Order::Lost { .. }) => {}
                Err(RecvTimeoutError::Timeout) => return self.stop.raised(),
            }
        }
    }

    /// Lets a host serve until it is lost or the server stops; it is gone afterwards.
    fn watch(&self, link: EngineLink, serial: u64) -> Watched {
        let EngineLink { info, requests, replies, mut process } = link;
        let (outbox, to_writer) = mpsc::channel();
        let live = Arc::new(Live::new(outbox, self.mailbox));
        let host = Arc::new(Host::new(info, process.pid(), live));
        let write = Writer { requests, from: to_writer, lost: self.loss_report(serial) };
        let read = Reader {
            replies,
            host: Arc::clone(&host),
            metrics: Arc::clone(&self.metrics),
            lost: self.loss_report(serial),
        };
        let spawned =
            spawn("engine-writer", move || write.run()).and_then(|()| spawn("engine-reader", move || read.run()));
        let ending = match spawned {
            Ok(()) => {
                tracing::info!(engine = host.info.engine, pid = host.pid, "engine ready");
                self.state.send_replace(EngineState::Ready(Arc::clone(&host)));
                self.attend(&host, serial)
            }
            Err(error) => Ending::Lost(format!("no thread for its connection: {error}")),
        };
        self.finish(&host, process.as_mut(), ending)
    }

    /// Waits for the end of a host, asking for its counters and checking its progress meanwhile.
    fn attend(&self, host: &Host, serial: u64) -> Ending {
        host.ask_for_stats();
        loop {
            match self.inbox.recv_timeout(self.settings.stats_every.min(self.settings.hang_after)) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return Ending::Stop,
                Ok(Order::Lost { serial: from, reason }) if from == serial => return Ending::Lost(reason),
                Ok(Order::Lost { .. }) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(reason) = self.hung(host) {
                        return Ending::Lost(reason);
                    }
                    host.ask_for_stats();
                }
            }
        }
    }

    fn hung(&self, host: &Host) -> Option<String> {
        let silent = host.silent_for();
        (!host.live.is_empty() && silent > self.settings.hang_after)
            .then(|| format!("it made no progress for {:.1} s and was killed", silent.as_secs_f64()))
    }

    /// Ends what is left of a host and its generations.
    fn finish(&self, host: &Host, process: &mut dyn EngineProcess, ending: Ending) -> Watched {
        let healthy = host.served.load(Ordering::Relaxed) || host.born.elapsed() > self.settings.stable_after;
        let reason = match ending {
            Ending::Stop => {
                host.live.close(EngineFault::ShuttingDown);
                host.live.send(Request::Close);
                if process.wait(self.settings.close).is_none() {
                    tracing::warn!(pid = host.pid, "engine did not exit by itself, killing it");
                }
                process.kill();
                return Watched { lost: None, healthy };
            }
            Ending::Lost(reason) => reason,
        };
        // From here on new requests wait for the next host instead of reaching this one.
        self.state.send_replace(EngineState::Restarting { reason: reason.clone() });
        let reason = match process.wait(EXIT_PATIENCE) {
            Some(exit) => format!("{reason} ({exit})"),
            None => reason,
        };
        process.kill();
        tracing::error!(reason, pid = host.pid, "engine lost");
        host.live.close(EngineFault::Lost(reason.clone()));
        Watched { lost: Some(reason), healthy }
    }

    fn loss_report(&self, serial: u64) -> impl Fn(String) + Send + 'static {
        let orders = self.orders.clone();
        move |reason| {
            // Nobody listens any more once the server stopped.
            let _ = orders.send(Order::Lost { serial, reason });
        }
    }
}

/// How the watch over a host ended.
struct Watched {
    /// Why it was lost; `None` if the server stopped it.
    lost: Option<String>,
    /// Whether it served, so that its loss is not one more in a row.
    healthy: bool,
}

impl Host {
    fn new(info: EngineInfo, pid: Option<u32>, live: Arc<Live>) -> Self {
        Self {
            info,
            pid,
            live,
            stats: Mutex::default(),
            born: Instant::now(),
            progress_us: AtomicU64::new(0),
            served: AtomicBool::new(false),
            stats_pending: AtomicBool::new(false),
        }
    }

    /// Asks for counters, one question at a time so that a busy host does not find a pile of them.
    fn ask_for_stats(&self) {
        if !self.stats_pending.swap(true, Ordering::Relaxed) {
            self.live.send(Request::Stats { id: self.live.next_id(), brief: true });
        }
    }

    fn take_stats(&self, new: EngineStats, metrics: &Metrics) {
        self.stats_pending.store(false, Ordering::Relaxed);
        let mut old = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let work = |stats: &EngineStats| (stats.steps, stats.prompt_tokens, stats.generated_tokens);
        if work(&old) != work(&new) {
            self.touch();
        }
        metrics.preemptions.add(new.preemptions.saturating_sub(old.preemptions));
        *old = new;
    }
}

struct Writer<F> {
    requests: Box<dyn RequestSink>,
    from: mpsc::Receiver<Request>,
    lost: F,
}

impl<F: Fn(String)> Writer<F> {
    fn run(mut self) {
        while let Ok(request) = self.from.recv() {
            if let Err(failure) = self.requests.send(&request) {
                return (self.lost)(failure.message);
            }
        }
    }
}

struct Reader<F> {
    replies: Box<dyn ReplySource>,
    host: Arc<Host>,
    metrics: Arc<Metrics>,
    lost: F,
}

impl<F: Fn(String)> Reader<F> {
    fn run(mut self) {
        let reason = loop {
            match self.replies.receive() {
                Ok(Some(reply)) => {
                    if let Err(reason) = self.take(reply) {
                        break reason;
                    }
                }
                Ok(None) => break "it closed its connection".to_owned(),
                Err(failure) => break failure.message,
            }
        };
        (self.lost)(reason);
    }

    fn take(&self, reply: Reply) -> Result<(), String> {
        match self.host.live.dispatch(reply) {
            Dispatched::Progress => self.host.touch(),
            Dispatched::Ended(usage) => self.ended(usage),
            Dispatched::Other(other) => match *other {
                Reply::Stats { stats, .. } => self.host.take_stats(*stats, &self.metrics),
                Reply::Error { id: None, error } => return Err(format!("it reported: {error}")),
                // A late answer about a generation that was dropped, or an engine without counters.
                _ => {}
            },
        }
        Ok(())
    }

    fn ended(&self, usage: Option<Usage>) {
        self.host.touch();
        if let Some(usage) = usage {
            self.host.served.store(true, Ordering::Relaxed);
            self.metrics.drafted_tokens.add(usage.drafted_tokens.into());
            self.metrics.accepted_tokens.add(usage.accepted_tokens.into());
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
