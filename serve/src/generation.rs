//! One request at work: its choices run at the engine side by side, their tokens become text, and all of it comes out as
//! one stream of [`Output`] that every dialect encodes in its own words.
//!
//! Dropping a [`Generation`] cancels all its choices. A choice ended by a stop string is cancelled at the engine at once;
//! its end is told to the client without waiting, while the generation waits a moment for what the engine reports, so
//! that usage is exact.

use crate::admission::Permit;
use crate::engine::{EngineEvent, EngineFault, EngineStream};
use crate::metrics::Metrics;
use crate::pipe::{Piece, Pipe};
use crate::supervisor::Host;
use crate::text::Text;
use crit_core::protocol::{FinishReason, Generate, Request, TokenLogprobs, Usage};
use crit_core::sampling::SamplingParams;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long the engine may take to report about a choice that was cancelled.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Order {
    /// API it came through, for metrics.
    pub api: &'static str,
    /// When the request came in.
    pub received: Instant,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// How to choose tokens; choice `k` uses `seed + k`.
    pub sampling: SamplingParams,
    /// Most tokens a choice.
    pub max_tokens: u32,
    /// Tokens that end a choice.
    pub end_ids: Vec<u32>,
    /// Texts that end a choice.
    pub stops: Vec<String>,
    /// Alternatives to report a token, if log-probs are wanted.
    pub top_logprobs: Option<u32>,
    /// How many choices.
    pub choices: u32,
}

/// How a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop string.
    Stop,
    /// The token limit or the context.
    Length,
}

impl Finish {
    /// The word for it in OpenAI's dialects and in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What a generation yields.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// New visible text of a choice.
    Text {
        /// The choice.
        choice: usize,
        /// The text.
        piece: Piece,
    },
    /// The end of a choice.
    Finish {
        /// The choice.
        choice: usize,
        /// How it ended.
        finish: Finish,
    },
    /// The end of the whole generation, unfinished.
    Fault(EngineFault),
}

/// What a whole request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of those, from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of all choices, end tokens among them.
    pub generated_tokens: u64,
}

enum Phase {
    Running,
    /// Its end was told; the engine's report is awaited until then.
    Reporting(Instant),
    Done,
}

struct Choice {
    stream: Option<EngineStream>,
    pipe: Pipe,
    phase: Phase,
    usage: Usage,
    last_token: Option<Instant>,
    finish: Option<Finish>,
}

/// One request at work.
pub struct Generation {
    api: &'static str,
    received: Instant,
    prompt_tokens: u64,
    choices: Vec<Choice>,
    ready: VecDeque<Output>,
    metrics: Arc<Metrics>,
    first_token_seen: bool,
    fault: bool,
    settled: bool,
    _permit: Permit,
}

impl Generation {
    /// Submits all choices.
    ///
    /// # Errors
    /// The host is gone.
    pub fn start(
        host: &Host,
        text: &Arc<dyn Text>,
        order: Order,
        permit: Permit,
        metrics: Arc<Metrics>,
    ) -> Result<Self, EngineFault> {
        let prompt_tokens = order.prompt.len() as u64;
        let choices =
            (0..order.choices).map(|index| Choice::start(host, text, &order, index)).collect::<Result<_, _>>()?;
        Ok(Self {
            api: order.api,
            received: order.received,
            prompt_tokens,
            choices,
            ready: VecDeque::new(),
            metrics,
            first_token_seen: false,
            fault: false,
            settled: false,
            _permit: permit,
        })
    }

    /// The next output; `None` when all choices ended and usage is complete.
    pub async fn next(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            let Some(event) = self.next_event().await else {
                self.settle();
                return None;
            };
            self.take(event);
        }
    }

    /// Waits for the first output, at most `patience`, without taking it: what the engine refuses at once can still be
    /// answered with a status.
    pub async fn refusal_within(&mut self, patience: Duration) -> Option<EngineFault> {
        let output = tokio::time::timeout(patience, self.next()).await.ok().flatten()?;
        if let Output::Fault(fault) = output {
            return Some(fault);
        }
        self.ready.push_front(output);
        None
    }

    /// What the request took; exact once [`next`](Self::next) returned `None`.
    pub fn totals(&self) -> Totals {
        Totals {
            prompt_tokens: self.prompt_tokens,
            // All choices share the prompt; what the first found in the cache is what the request found there.
            cached_tokens: self.choices.first().map_or(0, |choice| choice.usage.cached_tokens.into()),
            generated_tokens: self.choices.iter().map(|choice| u64::from(choice.pipe.tokens())).sum(),
        }
    }

    /// The next event of any choice that is not done; `None` if all are.
    async fn next_event(&mut self) -> Option<(usize, EngineEvent)> {
        loop {
            let deadline = self.report_deadline()?;
            let any = poll_fn(|context| {
                for (index, choice) in self.choices.iter_mut().enumerate() {
                    let Some(stream) = &mut choice.stream else { continue };
                    if let Poll::Ready(event) = stream.poll_next(context) {
                        return Poll::Ready((index, event));
                    }
                }
                Poll::Pending
            });
            match deadline {
                None => return Some(any.await),
                Some(deadline) => match tokio::time::timeout_at(deadline.into(), any).await {
                    Ok(event) => return Some(event),
                    Err(_) => self.give_up_reports(),
                },
            }
        }
    }

    /// `None` if every choice is done; the time to give up if all others only wait for a report; else no time.
    #[allow(clippy::option_option, reason = "three outcomes, told apart right where they are made")]
    fn report_deadline(&self) -> Option<Option<Instant>> {
        let mut latest = None;
        for choice in &self.choices {
            match choice.phase {
                Phase::Running => return Some(None),
                Phase::Reporting(until) => latest = latest.max(Some(until)),
                Phase::Done => {}
            }
        }
        latest.map(Some)
    }

    fn give_up_reports(&mut self) {
        for choice in &mut self.choices {
            choice.end();
        }
    }

    fn take(&mut self, (index, event): (usize, EngineEvent)) {
        let choice = &mut self.choices[index];
        match event {
            EngineEvent::Tokens { at, tokens, logprobs } if matches!(choice.phase, Phase::Running) => {
                self.take_tokens(index, at, &tokens, logprobs);
            }
            EngineEvent::Tokens { .. } => {}
            EngineEvent::Finished { reason, usage } => {
                choice.usage = usage;
                if choice.finish.is_none() {
                    self.take_end(index, reason);
                }
                self.choices[index].end();
            }
            EngineEvent::Failed(_) if choice.finish.is_some() => choice.end(),
            EngineEvent::Failed(fault) => self.fail(fault),
        }
    }

    fn take_tokens(&mut self, index: usize, at: Instant, tokens: &[u32], logprobs: Vec<TokenLogprobs>) {
        let choice = &mut self.choices[index];
        let before = choice.pipe.tokens();
        let piece = choice.pipe.push(tokens, logprobs);
        let taken = choice.pipe.tokens() - before;
        let stopped = choice.pipe.stopped();
        let previous = choice.last_token.replace(at);
        self.metrics.generated_tokens.add(taken.into());
        self.observe(previous, at, taken);
        self.show(index, piece);
        if stopped {
            self.finish(index, Finish::Stop);
            let choice = &mut self.choices[index];
            choice.phase = Phase::Reporting(Instant::now() + REPORT_PATIENCE);
            if let Some(stream) = &choice.stream {
                stream.cancel();
            }
        }
    }

    fn take_end(&mut self, index: usize, reason: FinishReason) {
        let finish = match reason {
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => {
                return self.fail(EngineFault::Lost("it cancelled the generation by itself".into()));
            }
        };
        let piece = self.choices[index].pipe.finish();
        self.show(index, piece);
        self.finish(index, finish);
    }

    fn show(&mut self, choice: usize, piece: Piece) {
        if !piece.is_empty() {
            self.ready.push_back(Output::Text { choice, piece });
        }
    }

    fn finish(&mut self, choice: usize, finish: Finish) {
        self.choices[choice].finish = Some(finish);
        self.ready.push_back(Output::Finish { choice, finish });
    }

    fn fail(&mut self, fault: EngineFault) {
        self.fault = true;
        self.choices.iter_mut().for_each(Choice::end);
        self.ready.push_back(Output::Fault(fault));
    }

    fn observe(&mut self, previous: Option<Instant>, at: Instant, tokens: u32) {
        if !std::mem::replace(&mut self.first_token_seen, true) {
            self.metrics.first_token.observe(at.saturating_duration_since(self.received));
        }
        // Tokens of one step arrive together: the step's time is shared out among them.
        let Some(previous) = previous else { return };
        if let Some(each) = at.saturating_duration_since(previous).checked_div(tokens) {
            (0..tokens).for_each(|_| self.metrics.inter_token.observe(each));
        }
    }

    /// Accounts for the request, once.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let totals = self.totals();
        let cached = totals.cached_tokens.min(totals.prompt_tokens);
        self.metrics.prompt_tokens_cached.add(cached);
        self.metrics.prompt_tokens_computed.add(totals.prompt_tokens - cached);
        self.metrics.request.observe(self.received.elapsed());
        let finishes: Vec<Finish> = self.choices.iter().filter_map(|choice| choice.finish).collect();
        let outcome = match finishes.iter().find(|&&finish| finish == Finish::Length).or(finishes.first()) {
            _ if self.fault => "error",
            Some(finish) if finishes.len() == self.choices.len() => finish.word(),
            _ => "abort",
        };
        if outcome == "abort" {
            self.metrics.client_disconnects.add(1);
        }
        self.metrics.requests.count(&[self.api, outcome]);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Choice {
    fn start(host: &Host, text: &Arc<dyn Text>, order: &Order, index: u32) -> Result<Self, EngineFault> {
        let mut sampling = order.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(index.into());
        let stream = host.submit(|id| Request::Submit {
            id,
            generate: Generate {
                prompt: order.prompt.clone(),
                sampling,
                max_tokens: order.max_tokens,
                stop_ids: order.end_ids.clone(),
                top_logprobs: order.top_logprobs,
            },
        })?;
        Ok(Self {
            stream: Some(stream),
            pipe: Pipe::new(Arc::clone(text), order.stops.clone(), order.end_ids.clone()),
            phase: Phase::Running,
            usage: Usage::default(),
            last_token: None,
            finish: None,
        })
    }

    /// Lets go of the engine; what still ran there is cancelled.
    fn end(&mut self) {
        self.stream = None;
        self.phase = Phase::Done;
    }
}
