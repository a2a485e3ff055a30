//! The engine as the evaluator sees it: four questions of the engine protocol, asked in turn.
//!
//! Candidate and reference are both reached through this trait, each in a process of its own. Tests put scripted
//! engines behind it.

use crit_core::error::{ErrorKind, Failure};
use crit_core::protocol::client::{Client, GenerationEvent};
use crit_core::protocol::spawn::{EngineCommand, EngineProcess};
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, Generate, ScorePlan, ScoreRow, TokenLogprobs, Usage};
use crit_core::sampling::SamplingParams;
use std::time::Duration;

/// A generation to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Ids that end it.
    pub stop_ids: Vec<u32>,
    /// Ask for the log-prob of each token and of this many alternatives.
    pub top_logprobs: Option<u32>,
}

/// Receives the tokens of a generation as they arrive, each with its log-probs if they were asked for and are offered.
pub type OnTokens<'a> = &'a mut dyn FnMut(&[u32], &[TokenLogprobs]);

/// Receives each row of a scoring plan: what it is, and the full-vocabulary log-probs, valid during the call.
pub type OnRow<'a> = &'a mut dyn FnMut(ScoreRow, &[f32]);

/// An engine behind the protocol.
pub trait EngineLink {
    /// What the engine is.
    ///
    /// # Errors
    /// The engine's own, or a broken connection.
    fn info(&mut self) -> Result<EngineInfo, Failure>;

    /// Its counters since start.
    ///
    /// # Errors
    /// The engine's own, or a broken connection.
    fn stats(&mut self) -> Result<EngineStats, Failure>;

    /// Runs a generation to its end.
    ///
    /// # Errors
    /// The engine's own, or a broken connection.
    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure>;

    /// Runs a scoring plan and answers how many positions of each sequence came from the prefix cache.
    ///
    /// # Errors
    /// The engine's own, or a broken connection.
    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure>;
}

/// An engine on the other side of a connection, with the process behind it if it was started here.
pub struct ProtocolLink {
    client: Client,
    vocab: Option<usize>,
    // Killed when dropped, so it must outlive the client's last word.
    process: Option<EngineProcess>,
}

impl ProtocolLink {
    /// An engine that runs already.
    pub fn new(client: Client) -> Self {
        Self { client, vocab: None, process: None }
    }

    /// Starts an engine and connects to it as soon as it answers.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready in time.
    pub fn start(command: &EngineCommand, ready_timeout: Duration) -> Result<Self, Failure> {
        let (process, client) = EngineProcess::start(command, "crit eval", ready_timeout)?;
        Ok(Self { process: Some(process), ..Self::new(client) })
    }

    /// Its process, if it was started here.
    pub fn process(&self) -> Option<&EngineProcess> {
        self.process.as_ref()
    }

    fn vocab(&mut self) -> Result<usize, Failure> {
        match self.vocab {
            Some(vocab) => Ok(vocab),
            None => Ok(self.info()?.vocab as usize),
        }
    }
}

impl EngineLink for ProtocolLink {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        let info = self.client.info()?;
        self.vocab = Some(info.vocab as usize);
        Ok(info)
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        Ok(self.client.stats()?)
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        let Generation { prompt, sampling, max_tokens, stop_ids, top_logprobs } = generation.clone();
        let events = self.client.submit(Generate { prompt, sampling, max_tokens, stop_ids, top_logprobs })?;
        for event in events {
            match event? {
                GenerationEvent::Tokens { tokens, logprobs } => on_tokens(&tokens, &logprobs),
                GenerationEvent::Finished { reason, usage } => return Ok((reason, usage)),
            }
        }
        Err(Failure::new(ErrorKind::Engine, "the generation's events ended without an end"))
    }

    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        let vocab = self.vocab()?.max(1);
        let hits = self.client.score(plan, vocab, |rows, values| {
            for (row, values) in rows.iter().zip(values.chunks_exact(vocab)) {
                on_row(*row, values);
            }
        })?;
        Ok(hits)
    }
}
