//! How a request wants its tokens chosen, and which wishes can be granted.

use crate::error::{Diagnose, ErrorKind};
use serde::{Deserialize, Serialize};

/// How a request wants its tokens chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides (positive) or multiplies (negative) logits of tokens seen in prompt or output; 1 is off (Keskar et al.
    /// 2019, arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens seen in the output.
    pub presence_penalty: f32,
    /// Subtracted from logits of output tokens once an occurrence.
    pub frequency_penalty: f32,
    /// Added to logits by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the request's own random stream; the same seed, prompt and engine give the same tokens.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A wish that cannot be granted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamsError {
    /// A number outside its range.
    #[error("sampling.{field} is {given}, allowed is {allowed}")]
    Range {
        /// The field.
        field: &'static str,
        /// What was given.
        given: f32,
        /// What may be given.
        allowed: &'static str,
    },
    /// A bias for a token that does not exist.
    #[error("sampling.logit_bias names token {token}, the vocabulary has {vocab}")]
    BiasToken {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
}

impl Diagnose for ParamsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Input
    }
}

impl SamplingParams {
    /// Whether the likeliest token is taken, without chance.
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether logits are changed before the temperature.
    pub fn changes_logits(&self) -> bool {
        self.penalises() || !self.logit_bias.is_empty()
    }

    /// Whether a token's history changes its logit.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Checks every field against its range and the vocabulary.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), ParamsError> {
        let ranges = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a finite number from 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, up to 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "a finite number above 0"),
            ("presence_penalty", self.presence_penalty, true, "a finite number"),
            ("frequency_penalty", self.frequency_penalty, true, "a finite number"),
        ];
        for (field, given, inside, allowed) in ranges {
            if !given.is_finite() || !inside {
                return Err(ParamsError::Range { field, given, allowed });
            }
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                return Err(ParamsError::BiasToken { token, vocab });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(ParamsError::Range {
                    field: "logit_bias",
                    given: bias,
                    allowed: "a number below infinity",
                });
            }
        }
        Ok(())
    }
}
