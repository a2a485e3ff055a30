//! The engine: an executor, its policies, the requests, and the step loop's body.
//!
//! A step that fails is run again request by request, so that only those fail that cannot run; their state is given
//! back and the engine goes on. A request's tokens depend on its prompt, parameters and seed alone, as far as the
//! executor's rows do not depend on their batch mates.
//!
//! Recurrent state cannot be cut: when drafted tokens are rejected it goes back to where it was before them, and those
//! that were accepted are pending again, beside the next token in the next step. After a failed step it is computed
//! anew. It cannot be shared either, so a model with such state takes nothing from the prefix cache.

use super::draft::Ran;
use super::passes::PassLog;
use super::scheduler::{Limits, Planned, Proposer, Scheduler};
use super::sequence::Sequence;
use super::state::StateStore;
use super::{EngineError, Executor, StepBatch};
use crate::error::{Diagnose, ErrorKind, Failure};
use crate::plugin::{Drafter, PrefixCache};
use crate::protocol::{EngineStats, FinishReason, Generate, TokenLogprobs, Usage};
use crate::sampling::ParamsError;
use std::time::Instant;

/// Numbers an assembly may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most tokens a drafter may propose at a time.
    pub draft_tokens: usize,
    /// Most requests that may wait.
    pub waiting: usize,
    /// Most tokens of a step, if fewer than the executor's.
    pub step_tokens: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { draft_tokens: 8, waiting: 4096, step_tokens: usize::MAX }
    }
}

/// Policies of an engine; each may be absent.
#[derive(Default)]
pub struct Policies {
    /// Proposes tokens.
    pub drafter: Option<Box<dyn Drafter>>,
    /// Tokens the model's own drafting head proposes at a time, if it is to be used; a drafter comes first.
    pub draft_head: Option<usize>,
    /// Remembers beginnings.
    pub prefix_cache: Option<Box<dyn PrefixCache>>,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// New tokens.
    Tokens {
        /// The request.
        key: u64,
        /// Token ids.
        tokens: Vec<u32>,
        /// One entry a token if asked for, else empty.
        logprobs: Vec<TokenLogprobs>,
    },
    /// It ended.
    Finished {
        /// The request.
        key: u64,
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// It failed.
    Failed {
        /// The request.
        key: u64,
        /// Why.
        error: Failure,
    },
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// Nothing to start from.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// Nothing to do.
    #[error("max_tokens is 0")]
    NothingToGenerate,
    /// A token id outside the vocabulary.
    #[error("prompt token {index} is {token}, the vocabulary has {vocab}")]
    Token {
        /// Where it stands.
        index: usize,
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
    /// The prompt leaves no room for a token.
    #[error("the prompt has {prompt} tokens, the context holds {context} with at least one to generate")]
    TooLong {
        /// Its tokens.
        prompt: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// Parameters out of range.
    #[error(transparent)]
    Sampling(#[from] ParamsError),
    /// Too many requests wait.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
}

impl Diagnose for RequestError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::QueueFull { .. } => ErrorKind::Environment,
            _ => ErrorKind::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::TooLong { .. } => Some("shorten the prompt, or raise `context` in engine.json".into()),
            Self::QueueFull { .. } => Some("try again when some have finished".into()),
            _ => None,
        }
    }
}

/// An executor with its requests.
pub struct Engine<E> {
    pub(super) executor: E,
    pub(super) state: StateStore,
    pub(super) scheduler: Scheduler,
    pub(super) passes: PassLog,
    pub(super) logits: Vec<f32>,
    pub(super) vocab: usize,
    /// Whether the executor holds state that cannot be cut.
    pub(super) recurrent: bool,
    step_tokens: usize,
    drafter: Option<Box<dyn Drafter>>,
    pub(super) draft_head: Option<usize>,
    config: EngineConfig,
    next_key: u64,
    totals: EngineStats,
}

impl<E: Executor> Engine<E> {
    /// An engine without requests.
    pub fn new(executor: E, policies: Policies, config: EngineConfig) -> Self {
        let info = executor.info();
        let limits = Limits {
            step_tokens: info.max_step_tokens.min(config.step_tokens).max(1),
            step_rows: info.max_step_rows.max(1),
            draft_tokens: config.draft_tokens,
            vocab: info.vocab,
        };
        Self {
            state: StateStore::new(info, policies.prefix_cache),
            scheduler: Scheduler::new(limits),
            passes: PassLog::default(),
            logits: Vec::new(),
            vocab: info.vocab,
            recurrent: info.slot_bytes > 0,
            step_tokens: limits.step_tokens,
            draft_head: policies.draft_head.filter(|_| info.drafts && policies.drafter.is_none()),
            drafter: policies.drafter,
            config,
            next_key: 0,
            totals: EngineStats::default(),
            executor,
        }
    }

    /// Gives the executor back, for callers that run steps of their own.
    pub fn into_executor(self) -> E {
        self.executor
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// Longest prompt and output together.
    pub fn max_context(&self) -> usize {
        self.executor.info().max_context.min(self.state.positions())
    }

    /// Whether no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.scheduler.waiting.is_empty() && self.scheduler.running.is_empty()
    }

    /// Queues a request and returns its key.
    ///
    /// # Errors
    /// The request cannot be served.
    pub fn submit(&mut self, generate: Generate) -> Result<u64, RequestError> {
        self.check(&generate)?;
        self.next_key += 1;
        let sequence = Sequence::new(self.next_key, generate, self.max_context());
        self.scheduler.waiting.push_back(sequence);
        Ok(self.next_key)
    }

    fn check(&self, generate: &Generate) -> Result<(), RequestError> {
        let (prompt, context, vocab) = (&generate.prompt, self.max_context(), self.vocab);
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if generate.max_tokens == 0 {
            return Err(RequestError::NothingToGenerate);
        }
        if prompt.len() >= context {
            return Err(RequestError::TooLong { prompt: prompt.len(), context });
        }
        if let Some(index) = prompt.iter().position(|token| *token as usize >= vocab) {
            return Err(RequestError::Token { index, token: prompt[index], vocab });
        }
        generate.sampling.check(vocab)?;
        match self.scheduler.waiting.len() {
            waiting if waiting >= self.config.waiting => Err(RequestError::QueueFull { waiting }),
            _ => Ok(()),
        }
    }

    /// Ends a request, wherever it is; its state is free at once. False if there is no such request.
    pub fn cancel(&mut self, key: u64, events: &mut Vec<Event>) -> bool {
        self.end(key, true, events, |usage| Event::Finished { key, reason: FinishReason::Cancelled, usage })
    }

    /// Runs one step, if there is anything to run. Events of the step are added to `events`.
    pub fn step_once(&mut self, events: &mut Vec<Event>) -> bool {
        let proposer = match (self.drafter.as_deref_mut(), self.draft_head) {
            (Some(drafter), _) => Some(Proposer::Drafter(drafter)),
            (None, Some(_)) => Some(Proposer::Head),
            (None, None) => None,
        };
        let plan = self.scheduler.plan(&mut self.state, proposer, Instant::now());
        if plan.is_empty() {
            return false;
        }
        self.totals.steps += 1;
        let copied = plan
            .iter()
            .flat_map(|planned| &planned.copies)
            .try_for_each(|&(from, to)| self.executor.copy_block(from, to));
        match copied.and_then(|()| self.run(&plan)) {
            Ok(()) => self.absorb(&plan, events),
            Err(error) if plan.len() == 1 => self.fail(plan[0].key, error.into(), events),
            Err(_) => {
                for planned in plan.chunks(1) {
                    match self.run_again(planned) {
                        Ok(()) => self.absorb(planned, events),
                        Err(error) => self.fail(planned[0].key, error.into(), events),
                    }
                }
            }
        }
        true
    }

    /// Counters since start, passes by shape, times by op.
    pub fn stats(&self) -> EngineStats {
        EngineStats { passes: self.passes.counts(), op_times: self.passes.op_times(), ..self.counters() }
    }

    /// Counters since start.
    pub fn counters(&self) -> EngineStats {
        EngineStats {
            waiting: self.scheduler.waiting.len() as u32,
            running: self.scheduler.running.len() as u32,
            preemptions: self.scheduler.preemptions,
            blocks_used: self.state.pool.used() as u32,
            blocks_remembered: self.state.remembered() as u32,
            blocks: self.state.pool.total() as u32,
            ..self.totals.clone()
        }
    }

    /// Runs the planned parts as one step; the logits are then in `self.logits`.
    fn run(&mut self, plan: &[Planned]) -> Result<(), EngineError> {
        let mut batch = StepBatch::default();
        let mut tokens = Vec::new();
        for planned in plan {
            let Some(sequence) = self.scheduler.running(planned.key) else { continue };
            let Some(held) = sequence.held.as_ref() else { continue };
            tokens.clear();
            tokens.extend_from_slice(&sequence.tokens[held.computed..held.computed + planned.take]);
            tokens.extend_from_slice(&planned.draft.tokens);
            let wanted = planned.take - usize::from(planned.last)..tokens.len();
            let blocks = held.table.blocks().to_vec();
            batch.push(&tokens, held.computed as u32, blocks, held.slot, wanted.map(|i| i as u32));
            batch.on_trial(planned.draft.tokens.len() as u32);
            batch.known(sequence.tokens.len() + planned.draft.tokens.len());
        }
        self.pass(&batch)
    }

    /// Runs parts of a step that failed. Recurrent state was left undefined: it is computed from the first token.
    fn run_again(&mut self, plan: &[Planned]) -> Result<(), EngineError> {
        let recurrent = self.recurrent;
        for planned in plan.iter().filter(|_| recurrent) {
            let Some(sequence) = self.scheduler.running(planned.key) else { continue };
            let Some(held) = sequence.held.as_ref() else { continue };
            let (slot, blocks) = (held.slot, held.table.blocks().to_vec());
            let (computed, length) = (sequence.tokens[..held.computed].to_vec(), sequence.tokens.len());
            for (i, tokens) in computed.chunks(self.step_tokens).enumerate() {
                let mut batch = StepBatch::default();
                batch.push(tokens, (i * self.step_tokens) as u32, blocks.clone(), slot, 0..0);
                batch.known(length);
                self.pass(&batch)?;
            }
        }
        self.run(plan)
    }

    /// Runs and counts one step of the executor.
    pub(super) fn pass(&mut self, batch: &StepBatch) -> Result<(), EngineError> {
        let start = Instant::now();
        self.executor.step(batch, &mut self.logits)?;
        self.passes.record(batch.axes(), start.elapsed());
        self.passes.add_op_times(self.executor.last_step_times());
        let needed = batch.rows.len() * self.vocab;
        match self.logits.len() == needed {
            true => Ok(()),
            false => Err(EngineError::Kernel {
                op: self.executor.info().name.clone(),
                message: format!("the step gave {} logits instead of {needed}", self.logits.len()),
            }),
        }
    }

    /// Takes the logits of a step: chooses tokens, rolls back rejected drafts, ends what is done.
    fn absorb(&mut self, plan: &[Planned], events: &mut Vec<Event>) {
        let logits = std::mem::take(&mut self.logits);
        let now = Instant::now();
        let mut rows = logits.as_slice();
        let (mut ran, mut first) = (Vec::new(), 0);
        for planned in plan {
            let count = usize::from(planned.last) + planned.draft.tokens.len();
            let (own, rest) = rows.split_at(count * self.vocab);
            rows = rest;
            let past = self.scheduler.running(planned.key).map_or(0, |sequence| sequence.computed());
            let kept = self.advance(planned, own, now, events);
            ran.push(Ran { key: planned.key, first, past, kept });
            first += planned.take + planned.draft.tokens.len();
        }
        self.logits = logits;
        self.follow(&ran);
    }

    /// Takes a request's rows; returns how many positions were computed from tokens that stayed.
    fn advance(&mut self, planned: &Planned, rows: &[f32], now: Instant, events: &mut Vec<Event>) -> usize {
        let (key, drafted) = (planned.key, planned.draft.tokens.len());
        let Some(sequence) = self.scheduler.running.iter_mut().find(|sequence| sequence.key == key) else { return 0 };
        let Some(held) = sequence.held.as_mut() else { return 0 };
        held.computed += planned.take;
        if !planned.last {
            return planned.take;
        }
        let index = (sequence.tokens.len() - sequence.prompt) as u64;
        let verified = match sequence.sampler.verify(rows, self.vocab, &planned.draft, index) {
            Ok(verified) => verified,
            Err(error) => {
                self.fail(key, error.into(), events);
                return 0;
            }
        };
        let kept = planned.take + verified.accepted;
        let end = held.computed + verified.accepted;
        match verified.accepted < drafted && self.recurrent {
            false => held.computed += verified.accepted,
            true => {
                if let Err(error) = self.executor.roll_back(held.slot) {
                    self.fail(key, error.into(), events);
                    return 0;
                }
            }
        }
        if drafted > 0 {
            held.table.truncate(&mut self.state.pool, end);
            sequence.usage.drafted_tokens += drafted as u32;
            sequence.usage.accepted_tokens += verified.accepted as u32;
            self.totals.drafted_tokens += drafted as u64;
            self.totals.accepted_tokens += verified.accepted as u64;
            if let Some(drafter) = &mut self.drafter {
                drafter.accepted(key, drafted, verified.accepted);
            }
        }
        if index == 0 {
            self.totals.cached_tokens += u64::from(sequence.usage.cached_tokens);
            self.totals.prompt_tokens += u64::from(sequence.usage.prompt_tokens - sequence.usage.cached_tokens);
            // Requests that begin alike and come while this one still runs can share its prompt.
            self.state.remember(held, &sequence.tokens);
        }
        let (taken, end) = sequence.extend(&verified.tokens, now);
        self.totals.generated_tokens += taken as u64;
        let tokens = verified.tokens[..taken].to_vec();
        let logprobs = sequence.logprobs(rows, self.vocab, &tokens);
        events.push(Event::Tokens { key, tokens, logprobs });
        if let Some(reason) = end {
            self.end(key, true, events, |usage| Event::Finished { key, reason, usage });
        }
        kept
    }

    fn fail(&mut self, key: u64, error: Failure, events: &mut Vec<Event>) {
        self.end(key, false, events, |_| Event::Failed { key, error });
    }

    fn end(&mut self, key: u64, remember: bool, events: &mut Vec<Event>, event: impl FnOnce(Usage) -> Event) -> bool {
        let Some(mut sequence) = self.scheduler.remove(key) else { return false };
        if let Some(held) = sequence.held.take() {
            if remember {
                self.state.remember(&held, &sequence.tokens);
            }
            self.state.close(held);
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.forget(key);
        }
        events.push(event(sequence.usage));
        true
    }
}
