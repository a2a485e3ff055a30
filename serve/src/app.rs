//! What all routes share, and the one way from a parsed request to a running [`Generation`].
//!
//! Order: admission (cheap, so a flood is refused at once) → engine ready → render and tokenise off the async workers →
//! length check → submit. All of it happens before a dialect sends a status.

use crate::admission::Admission;
use crate::config::ServerConfig;
use crate::engine::EngineFault;
use crate::generation::{Generation, Order};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::supervisor::{EngineState, Host, Supervisor};
use crate::text::{Conversation, Text};
use crit_core::error::Failure;
use crit_core::sampling::SamplingParams;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// How long an engine may take to refuse a request that is still to be answered with a status.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(50);

/// When a client of a server that loads or restarts should ask again.
const LOADING_RETRY: Duration = Duration::from_secs(2);

/// A parsed generation request of any dialect.
#[derive(Clone, Debug)]
pub struct Call {
    /// API it came through, for metrics.
    pub api: &'static str,
    /// When it came in.
    pub received: Instant,
    /// The model asked for; absent means the one served.
    pub model: Option<String>,
    /// The conversation.
    pub conversation: Conversation,
    /// JSON path of the conversation, for errors of the template.
    pub conversation_path: &'static str,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens to generate; absent means what the context leaves.
    pub max_tokens: Option<u32>,
    /// Texts that end a choice.
    pub stops: Vec<String>,
    /// Whether end tokens are ignored.
    pub ignore_end: bool,
    /// Alternatives to report a token, if log-probs are wanted.
    pub top_logprobs: Option<u32>,
    /// How many choices.
    pub choices: u32,
}

/// What all routes share.
pub struct App {
    /// The configuration.
    pub config: ServerConfig,
    /// Tokenizer and template.
    pub text: Arc<dyn Text>,
    /// The engine.
    pub supervisor: Supervisor,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// When the server started, in Unix seconds.
    pub started_unix_s: u64,
    admission: Arc<Admission>,
    draining: AtomicBool,
}

impl App {
    /// The shared state of a server.
    pub fn new(config: ServerConfig, text: Arc<dyn Text>, supervisor: Supervisor, metrics: Arc<Metrics>) -> Self {
        let admission = Admission::new(config.limits.generations, config.limits.prompt_tokens);
        Self {
            config,
            text,
            supervisor,
            metrics,
            started_unix_s: unix_s(),
            admission,
            draining: AtomicBool::new(false),
        }
    }

    /// Refuses new requests from now on.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the server is about to stop.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether `name` means the model served here.
    ///
    /// # Errors
    /// It does not.
    pub fn check_model(&self, name: &str) -> Result<(), Problem> {
        if name == self.config.model || self.config.aliases.iter().any(|alias| alias == name) {
            return Ok(());
        }
        Err(Problem::UnknownModel { asked: name.to_owned(), served: self.config.model.clone() })
    }

    /// Longest sequence with this host.
    pub fn context(&self, host: &Host) -> u32 {
        match self.config.context {
            0 => host.info.max_context,
            own => own.min(host.info.max_context),
        }
    }

    /// From a call to its generation.
    ///
    /// # Errors
    /// Everything that can be said before a status is sent.
    pub async fn generate(self: &Arc<Self>, call: Call) -> Result<Generation, Problem> {
        let started = self.try_generate(call).await;
        if let Err(problem) = &started
            && problem.retry_after().is_some()
        {
            self.metrics.rejections.count(&[problem.code()]);
        }
        started
    }

    async fn try_generate(self: &Arc<Self>, call: Call) -> Result<Generation, Problem> {
        if let Some(model) = &call.model {
            self.check_model(model)?;
        }
        let mut permit = self.admission.admit(call.choices as usize)?;
        let host = self.ready_host().await?;
        check_bias(&call.sampling, host.info.vocab)?;
        let prompt = self.tokenise(call.conversation, call.conversation_path).await?;
        let room = room(prompt.len(), self.context(&host))?;
        permit.take_prompt(prompt.len().saturating_mul(call.choices as usize))?;
        let order = Order {
            api: call.api,
            received: call.received,
            prompt,
            sampling: call.sampling,
            max_tokens: call.max_tokens.unwrap_or(room).min(room),
            end_ids: if call.ignore_end { Vec::new() } else { self.config.end_ids.clone() },
            stops: call.stops,
            top_logprobs: call.top_logprobs,
            choices: call.choices,
        };
        let mut generation = Generation::start(&host, &self.text, order, permit, Arc::clone(&self.metrics))?;
        match generation.refusal_within(REFUSAL_PATIENCE).await {
            Some(fault) => Err(fault.into()),
            None => Ok(generation),
        }
    }

    /// The host, waiting for a restart in progress but not for the first load.
    async fn ready_host(&self) -> Result<Arc<Host>, Problem> {
        if self.draining() {
            return Err(EngineFault::ShuttingDown.into());
        }
        let mut state = self.supervisor.state();
        let settled = |state: &EngineState| !matches!(state, EngineState::Restarting { .. });
        // Time over or supervisor gone: what stands then is the answer.
        let _ = timeout(self.config.supervision.restart_wait, state.wait_for(settled)).await;
        let now = state.borrow().clone();
        match now {
            EngineState::Ready(host) => Ok(host),
            other => Err(not_ready(&other)),
        }
    }

    async fn tokenise(&self, conversation: Conversation, path: &'static str) -> Result<Vec<u32>, Problem> {
        let text = Arc::clone(&self.text);
        let work = move || text.render(&conversation).and_then(|prompt| text.encode(&prompt));
        let done = tokio::task::spawn_blocking(work).await.map_err(|error| Problem::Internal(error.to_string()))?;
        let prompt = done.map_err(|failure| template_problem(path, &failure))?;
        if prompt.is_empty() {
            return Err(Problem::invalid(path, "renders to an empty prompt"));
        }
        Ok(prompt)
    }
}

/// Why the engine cannot take a request in this state.
pub fn not_ready(state: &EngineState) -> Problem {
    let reason = match state {
        EngineState::Loading => "the model is loading".to_owned(),
        EngineState::Ready(_) => "it just changed, ask again".to_owned(),
        EngineState::Restarting { reason } => format!("it is restarting after it was lost: {reason}"),
        EngineState::Refused(failure) => format!("it did not start: {failure}"),
        EngineState::Lost { attempts, reason } => format!("it was lost {attempts} times in a row: {reason}"),
        EngineState::Stopped => "the server is shutting down".to_owned(),
    };
    Problem::NotReady { reason, retry_after: LOADING_RETRY }
}

fn check_bias(sampling: &SamplingParams, vocab: u32) -> Result<(), Problem> {
    match sampling.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        Some((id, _)) => {
            Err(Problem::invalid(format!("logit_bias.{id}"), format!("is no token id: the vocabulary has {vocab}")))
        }
        None => Ok(()),
    }
}

/// Tokens the context leaves for generation.
fn room(prompt_tokens: usize, context: u32) -> Result<u32, Problem> {
    u32::try_from(prompt_tokens)
        .ok()
        .and_then(|prompt| context.checked_sub(prompt))
        .filter(|&room| room > 0)
        .ok_or(Problem::TooLong { prompt_tokens, context })
}

fn template_problem(path: &str, failure: &Failure) -> Problem {
    use crit_core::error::ErrorKind;
    match failure.kind {
        ErrorKind::Internal => Problem::Internal(failure.message.clone()),
        _ => Problem::invalid(path, format!("cannot be rendered for this model: {failure}")),
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_exact_at_the_limit() {
        assert_eq!(room(9, 10), Ok(1));
        assert_eq!(room(10, 10), Err(Problem::TooLong { prompt_tokens: 10, context: 10 }));
        assert_eq!(room(usize::MAX, 10), Err(Problem::TooLong { prompt_tokens: usize::MAX, context: 10 }));
    }
}
