//! Sampling: from a logits row to a token.

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
