//! The engine as the evaluator sees it: four questions of the engine protocol, asked in turn.
//!
//! Candidate and reference are both reached through this trait, each in a process of its own. Tests put scripted
//! engines behind it.

use crit_core::error::Failure;
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, ScorePlan, ScoreRow, Usage};
use crit_core::sampling::SamplingParams;

/// A generation to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Ids that end it.
    pub stop_ids: Vec<u32>,
}

/// Receives the tokens of a generation as they arrive.
pub type OnTokens<'a> = &'a mut dyn FnMut(&[u32]);

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
