//! An engine in this process that plays a script for each request: which tokens come when, and what goes wrong.

use crit_core::error::{ErrorKind, Failure};
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, Generate, Reply, Request, TokenLogprobs, Usage};
use crit_serve::engine::link::StopFlag;
use crit_serve::engine::{EngineLauncher, EngineLink, EngineProcess, ReplySource, RequestSink};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::bytes::END;

/// What the script does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Tokens that arrive together.
    Tokens(Vec<u32>),
    /// Nothing for a while, ended early by a cancellation.
    Wait(u64),
    /// Nothing until the gate is open.
    Gate(Arc<AtomicBool>),
    /// The engine dies.
    Crash,
    /// The engine answers nothing any more, counters neither.
    Hang,
    /// The engine refuses the request.
    Refuse(ErrorKind, &'static str),
    /// Cached prompt tokens to report.
    Cached(u32),
}

/// One token a byte, each arriving alone, then the end.
pub fn text_steps(text: &str) -> Vec<Step> {
    text.bytes().map(|byte| Step::Tokens(vec![byte.into()])).chain([Step::Tokens(vec![END])]).collect()
}

/// A request as the script sees it.
#[derive(Clone, Debug)]
pub struct Submit(Generate);

type Script = dyn Fn(&Submit) -> Vec<Step> + Send + Sync;

/// The engine: every launch makes a new one that plays the same script.
#[derive(Clone)]
pub struct Scripted(Arc<Shared>);

pub struct Shared {
    script: Box<Script>,
    pub launches: AtomicU32,
    /// Launches from this one on fail.
    pub broken_from: AtomicU32,
    /// Milliseconds a launch takes.
    pub load_ms: AtomicU32,
    pub context: AtomicU32,
    pub requests: Mutex<Vec<Request>>,
    /// Generations that ended by a cancellation.
    pub cancelled: AtomicU32,
    pub closed: AtomicBool,
    pub kills: AtomicU32,
    current: Mutex<Option<Arc<Machine>>>,
}

impl Deref for Scripted {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Scripted {
    pub fn new(script: impl Fn(&Submit) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            script: Box::new(script),
            launches: AtomicU32::new(0),
            broken_from: AtomicU32::new(u32::MAX),
            load_ms: AtomicU32::new(0),
            context: AtomicU32::new(4096),
            requests: Mutex::default(),
            cancelled: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            kills: AtomicU32::new(0),
            current: Mutex::default(),
        }))
    }

    /// All generations submitted so far.
    pub fn submits(&self) -> Vec<Submit> {
        self.requests.lock().unwrap().iter().filter_map(Submit::of).collect()
    }

    /// The engine dies now.
    pub fn crash(&self) {
        if let Some(machine) = &*self.current.lock().unwrap() {
            machine.die();
        }
    }
}

impl EngineLauncher for Scripted {
    fn launch(&self, stop: &StopFlag) -> Result<EngineLink, Failure> {
        let launch = self.launches.fetch_add(1, Ordering::SeqCst) + 1;
        let until = Instant::now() + Duration::from_millis(self.load_ms.load(Ordering::SeqCst).into());
        while Instant::now() < until && !stop.raised() {
            std::thread::sleep(Duration::from_millis(2));
        }
        if stop.raised() || launch >= self.broken_from.load(Ordering::SeqCst) {
            return Err(Failure::new(ErrorKind::Engine, "the model cannot be loaded"));
        }
        let (replies, source) = channel();
        let machine = Arc::new(Machine {
            shared: Arc::clone(&self.0),
            replies: Mutex::new(Some(replies)),
            hung: AtomicBool::new(false),
            cancels: Mutex::default(),
        });
        *self.current.lock().unwrap() = Some(machine.clone());
        Ok(EngineLink {
            info: EngineInfo {
                engine: "scripted 1".into(),
                arch: String::new(),
                target: "none".into(),
                max_context: self.context.load(Ordering::SeqCst),
                max_batch: 4,
                vocab: 300,
                plugins: Vec::new(),
                executor: None,
            },
            requests: Box::new(Link(machine.clone())),
            replies: Box::new(Source(source)),
            process: Box::new(Link(machine)),
        })
    }
}

/// One launched engine.
struct Machine {
    shared: Arc<Shared>,
    replies: Mutex<Option<Sender<Reply>>>,
    hung: AtomicBool,
    cancels: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

impl Machine {
    fn reply(&self, reply: Reply) {
        if self.hung.load(Ordering::SeqCst) {
            return;
        }
        if let Some(replies) = &*self.replies.lock().unwrap() {
            let _ = replies.send(reply);
        }
    }

    fn die(&self) {
        *self.replies.lock().unwrap() = None;
    }

    fn dead(&self) -> bool {
        self.replies.lock().unwrap().is_none()
    }

    fn submit(self: &Arc<Self>, id: u64, submit: Submit) {
        let cancel = Arc::new(AtomicBool::new(false));
        self.cancels.lock().unwrap().insert(id, cancel.clone());
        let play = Play { machine: self.clone(), id, cancel, usage: Usage::default(), last: None };
        std::thread::spawn(move || play.run(&submit));
    }
}

/// The ends of a machine that the server holds.
struct Link(Arc<Machine>);

struct Source(Receiver<Reply>);

impl RequestSink for Link {
    fn send(&mut self, request: &Request) -> Result<(), Failure> {
        if self.0.dead() {
            return Err(Failure::new(ErrorKind::Engine, "broken pipe"));
        }
        self.0.shared.requests.lock().unwrap().push(request.clone());
        match request {
            Request::Submit { id, .. } => self.0.submit(*id, Submit::of(request).unwrap()),
            Request::Cancel { id } => {
                if let Some(cancel) = self.0.cancels.lock().unwrap().get(id) {
                    cancel.store(true, Ordering::SeqCst);
                }
            }
            Request::Stats { id, .. } => {
                let running = self.0.cancels.lock().unwrap().len() as u32;
                let stats = EngineStats { running, blocks: 10, blocks_used: running, ..EngineStats::default() };
                self.0.reply(Reply::Stats { id: *id, stats: Box::new(stats) });
            }
            Request::Close => {
                self.0.shared.closed.store(true, Ordering::SeqCst);
                self.0.reply(Reply::Closed);
                self.0.die();
            }
            _ => {}
        }
        Ok(())
    }
}

impl ReplySource for Source {
    fn receive(&mut self) -> Result<Option<Reply>, Failure> {
        Ok(self.0.recv().ok())
    }
}

impl EngineProcess for Link {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn wait(&mut self, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        while !self.0.dead() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.0.dead().then(|| "exited in the test".to_owned())
    }

    fn kill(&mut self) {
        self.0.shared.kills.fetch_add(1, Ordering::SeqCst);
        self.0.die();
    }
}

/// One generation being played.
struct Play {
    machine: Arc<Machine>,
    id: u64,
    cancel: Arc<AtomicBool>,
    usage: Usage,
    last: Option<u32>,
}

impl Play {
    fn run(mut self, submit: &Submit) {
        self.usage.prompt_tokens = submit.prompt.len() as u32;
        let script = (self.machine.shared.script)(submit);
        let end = script.into_iter().find_map(|step| self.step(step, submit));
        match end.unwrap_or(Some(FinishReason::Length)) {
            Some(reason) => self.finish(reason),
            None => _ = self.machine.cancels.lock().unwrap().remove(&self.id),
        }
    }

    fn finish(&self, reason: FinishReason) {
        self.machine.cancels.lock().unwrap().remove(&self.id);
        if reason == FinishReason::Cancelled {
            self.machine.shared.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        self.machine.reply(Reply::Finished { id: self.id, reason, usage: self.usage });
    }

    /// Plays a step: `Some` at the end of the generation, with the reason if it is to be reported.
    fn step(&mut self, step: Step, submit: &Submit) -> Option<Option<FinishReason>> {
        if self.machine.dead() {
            return Some(None);
        }
        if self.cancel.load(Ordering::SeqCst) {
            return Some(Some(FinishReason::Cancelled));
        }
        match step {
            Step::Tokens(tokens) => return self.tokens(tokens, submit).map(Some),
            Step::Wait(ms) => return self.wait(ms).then_some(Some(FinishReason::Cancelled)),
            Step::Gate(gate) => {
                while !gate.load(Ordering::SeqCst) {
                    if self.wait(1) {
                        return Some(Some(FinishReason::Cancelled));
                    }
                }
                return None;
            }
            Step::Crash => self.machine.die(),
            Step::Hang => self.machine.hung.store(true, Ordering::SeqCst),
            Step::Cached(tokens) => {
                self.usage.cached_tokens = tokens;
                return None;
            }
            Step::Refuse(kind, message) => {
                let error = Failure::new(kind, message);
                self.machine.reply(Reply::Error { id: Some(self.id), error });
            }
        }
        Some(None)
    }

    fn tokens(&mut self, mut tokens: Vec<u32>, submit: &Submit) -> Option<FinishReason> {
        tokens.truncate((submit.max_tokens - self.usage.generated_tokens) as usize);
        let end = tokens.iter().position(|token| submit.stop_ids.contains(token));
        tokens.truncate(end.map_or(tokens.len(), |end| end + 1));
        self.usage.generated_tokens += tokens.len() as u32;
        self.last = tokens.last().copied();
        let logprobs = match submit.top_logprobs {
            Some(top) => tokens.iter().map(|&token| logprobs(token, top)).collect(),
            None => Vec::new(),
        };
        self.machine.reply(Reply::Tokens { id: self.id, tokens, logprobs });
        match end {
            Some(_) => Some(FinishReason::Stop),
            None => (self.usage.generated_tokens == submit.max_tokens).then_some(FinishReason::Length),
        }
    }

    /// Whether the generation was cancelled meanwhile.
    fn wait(&self, ms: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(ms);
        while Instant::now() < until && !self.machine.dead() {
            if self.cancel.load(Ordering::SeqCst) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

fn logprobs(token: u32, top: u32) -> TokenLogprobs {
    TokenLogprobs { logprob: -0.5, top: (0..top).map(|rank| (token + rank, -0.5 - rank as f32)).collect() }
}

impl Submit {
    pub fn of(request: &Request) -> Option<Self> {
        let Request::Submit { generate, .. } = request else { return None };
        Some(Self(generate.clone()))
    }

    /// The prompt as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.prompt.iter().map(|&id| id as u8).collect()).unwrap()
    }
}

impl Deref for Submit {
    type Target = Generate;

    fn deref(&self) -> &Generate {
        &self.0
    }
}
