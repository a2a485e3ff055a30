//! A request inside the runtime: its tokens, its place in the executor's state, what it has cost so far.

use super::blocks::BlockTable;
use crate::protocol::{FinishReason, Generate, TokenLogprobs, Usage};
use crate::sampling::{Sampler, top_logprobs};
use std::time::Instant;

/// What a request holds of the executor's state while it runs.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) table: BlockTable,
    pub(super) slot: u32,
    /// Positions whose state is there.
    pub(super) computed: usize,
    /// Whether they were computed as those of a long sequence, whose state cannot be shared with short ones.
    pub(super) long: bool,
}

/// A request.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) key: u64,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) sampler: Sampler,
    pub(super) stop_ids: Vec<u32>,
    /// Length of prompt and output at which it ends.
    pub(super) longest: usize,
    pub(super) top_logprobs: Option<u32>,
    pub(super) usage: Usage,
    /// State, if it runs.
    pub(super) held: Option<Held>,
    /// What the model's own head proposes, and at which length.
    pub(super) drafted: (usize, Vec<u32>),
    /// The step it last took part in.
    pub(super) last_step: u64,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
}

impl Sequence {
    /// A request that passed the engine's checks; `longest` bounds prompt and output together.
    pub(super) fn new(key: u64, generate: Generate, longest: usize) -> Self {
        let Generate { prompt, sampling, max_tokens, stop_ids, top_logprobs } = generate;
        let longest = prompt.len().saturating_add(max_tokens as usize).min(longest);
        Self {
            key,
            prompt: prompt.len(),
            sampler: Sampler::new(sampling, &prompt),
            stop_ids,
            longest,
            top_logprobs,
            usage: Usage { prompt_tokens: prompt.len() as u32, ..Usage::default() },
            tokens: prompt,
            held: None,
            drafted: (0, Vec::new()),
            last_step: 0,
            admitted: None,
            first_token: None,
        }
    }

    /// Positions whose state is there.
    pub(super) fn computed(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.computed)
    }

    /// Known tokens whose state is not there yet: one while decoding, more during prefill.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed()
    }

    /// Tokens generated so far.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Marks the first admission; a later one, after a preemption, keeps the time of the first.
    pub(super) fn admitted(&mut self, now: Instant) {
        self.admitted.get_or_insert(now);
    }

    /// Takes newly chosen tokens up to the one that ends the request. Returns how many were taken and why it ended, if
    /// it did.
    pub(super) fn extend(&mut self, chosen: &[u32], now: Instant) -> (usize, Option<FinishReason>) {
        let (mut taken, mut end) = (0, None);
        for &token in chosen {
            self.tokens.push(token);
            taken += 1;
            if self.stop_ids.contains(&token) {
                end = Some(FinishReason::Stop);
            } else if self.tokens.len() >= self.longest {
                end = Some(FinishReason::Length);
            }
            if end.is_some() {
                break;
            }
        }
        self.usage.generated_tokens = self.generated() as u32;
        let first = *self.first_token.get_or_insert(now);
        self.usage.decode_us = micros(first, now);
        if self.generated() == taken {
            self.usage.first_token_us = self.admitted.map_or(0, |admitted| micros(admitted, now));
        }
        (taken, end)
    }

    /// Log-probs of the chosen tokens, if the request wants them.
    pub(super) fn logprobs(&self, rows: &[f32], vocab: usize, chosen: &[u32]) -> Vec<TokenLogprobs> {
        let Some(count) = self.top_logprobs else { return Vec::new() };
        let describe = |(row, &token): (&[f32], &u32)| {
            let (logprob, top) = top_logprobs(row, token, count as usize);
            TokenLogprobs { logprob, top }
        };
        rows.chunks_exact(vocab).zip(chosen).map(describe).collect()
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_micros()).unwrap_or(u64::MAX)
}
