//! A request's sampler: its history, its random stream, and the choice of the next token.

use super::{Distribution, Lane, RandomStream, SamplingParams};
use crate::error::{Diagnose, ErrorKind};
use std::borrow::Cow;
use std::collections::HashMap;

/// Why no token can be chosen from a row.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// The engine computed something that is not a logit.
    #[error("the logit of token {token} is {value}")]
    NotALogit {
        /// The token.
        token: u32,
        /// NaN or +inf.
        value: f32,
    },
    /// Every token is masked.
    #[error("no token can be chosen: every logit is -inf")]
    AllMasked,
    /// Rows and draft do not belong together.
    #[error("{rows} logits were given for {tokens} tokens of a vocabulary of {vocab}")]
    Shape {
        /// Logits given.
        rows: usize,
        /// Rows needed.
        tokens: usize,
        /// Width of a row.
        vocab: usize,
    },
}

impl Diagnose for SamplingError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotALogit { .. } => ErrorKind::Engine,
            Self::AllMasked => ErrorKind::Input,
            Self::Shape { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotALogit { .. } => Some("compare the engine with the exact reference: `crit smoke`".into()),
            Self::AllMasked => Some("leave at least one token without a logit bias of -inf".into()),
            Self::Shape { .. } => None,
        }
    }
}

/// The highest logit and its token, the lowest id among equals.
pub(super) fn highest(row: &[f32]) -> Result<(u32, f32), SamplingError> {
    let mut max = f32::NEG_INFINITY;
    let mut nan = false;
    for &x in row {
        max = if x > max { x } else { max };
        nan |= x.is_nan();
    }
    if nan || max == f32::INFINITY {
        let found = row.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
        return Err(SamplingError::NotALogit { token: found as u32, value: row[found] });
    }
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::AllMasked);
    }
    let token = row.iter().position(|&x| x == max).unwrap_or(0);
    Ok((token as u32, max))
}

/// Chooses the tokens of one request.
#[derive(Clone, Debug)]
pub struct Sampler {
    pub(super) params: SamplingParams,
    pub(super) random: RandomStream,
    /// Tokens of prompt and output, with their occurrences in the output; empty if nothing is penalised.
    seen: HashMap<u32, u32>,
    changed: Vec<f32>,
    pub(super) drawn_from: Distribution,
}

impl Sampler {
    /// A sampler for a request whose parameters passed [`SamplingParams::check`].
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Self {
        let seen = match params.penalises() {
            true => prompt.iter().map(|&token| (token, 0)).collect(),
            false => HashMap::new(),
        };
        let random = RandomStream::new(params.seed);
        Self { params, random, seen, changed: Vec::new(), drawn_from: Distribution::default() }
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses token `index` of the output from `row` and takes it into the history.
    ///
    /// # Errors
    /// A row that is not a row of logits.
    pub fn choose(&mut self, row: &[f32], index: u64) -> Result<u32, SamplingError> {
        self.prepare(row)?;
        let token = self.draw(index);
        self.commit(token);
        Ok(token)
    }

    /// Takes a token into the history.
    pub(super) fn commit(&mut self, token: u32) {
        if self.params.penalises() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    /// Makes the distribution of the next token.
    pub(super) fn prepare(&mut self, row: &[f32]) -> Result<(), SamplingError> {
        let mut changed = std::mem::take(&mut self.changed);
        let row = match self.params.changes_logits() {
            true => {
                changed.clear();
                changed.extend_from_slice(row);
                self.change(&mut changed);
                Cow::Owned(changed)
            }
            false => Cow::Borrowed(row),
        };
        let result = self.drawn_from.fill(&self.params, &row);
        if let Cow::Owned(changed) = row {
            self.changed = changed;
        }
        result
    }

    /// Draws from the prepared distribution.
    pub(super) fn draw(&self, index: u64) -> u32 {
        let u = match self.params.greedy() {
            true => 0.0,
            false => self.random.uniform(index, Lane::Draw),
        };
        self.drawn_from.at(u).unwrap_or(0)
    }

    fn change(&self, row: &mut [f32]) {
        for &(token, bias) in &self.params.logit_bias {
            if let Some(x) = row.get_mut(token as usize) {
                *x += bias;
            }
        }
        for (&token, &outputs) in &self.seen {
            let Some(x) = row.get_mut(token as usize) else { continue };
            let factor = self.params.repetition_penalty;
            *x = if *x > 0.0 { *x / factor } else { *x * factor };
            if outputs > 0 {
                *x -= self.params.presence_penalty + self.params.frequency_penalty * outputs as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(params: SamplingParams, prompt: &[u32], row: &[f32]) -> Result<u32, SamplingError> {
        Sampler::new(params, prompt).choose(row, 0)
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        assert_eq!(greedy(SamplingParams::default(), &[], &[0.0, 3.0, 3.0]), Ok(1));
        assert_eq!(greedy(SamplingParams { top_k: 1, ..Default::default() }, &[], &[3.0, 3.0]), Ok(0));
    }

    #[test]
    fn rows_that_are_no_logits_are_errors() {
        for params in [SamplingParams::default(), SamplingParams { temperature: 1.0, ..Default::default() }] {
            let nan = greedy(params.clone(), &[], &[0.0, f32::NAN, 1.0]);
            assert!(matches!(nan, Err(SamplingError::NotALogit { token: 1, .. })), "{nan:?}");
            let inf = greedy(params.clone(), &[], &[0.0, 1.0, f32::INFINITY]);
            assert!(matches!(inf, Err(SamplingError::NotALogit { token: 2, .. })), "{inf:?}");
            assert_eq!(greedy(params.clone(), &[], &[f32::NEG_INFINITY; 2]), Err(SamplingError::AllMasked));
            assert_eq!(greedy(params, &[], &[]), Err(SamplingError::AllMasked));
        }
    }

    #[test]
    fn bias_moves_and_masks() {
        let up = SamplingParams { logit_bias: vec![(2, 5.0)], ..Default::default() };
        assert_eq!(greedy(up, &[], &[1.0, 2.0, 0.0]), Ok(2));
        let mask = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..Default::default() };
        assert_eq!(greedy(mask, &[], &[1.0, 2.0, 0.0]), Ok(0));
    }

    #[test]
    fn repetition_penalty_counts_prompt_and_output() {
        let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
        // 3 / 2 < 2; a negative logit gets more negative.
        assert_eq!(greedy(params.clone(), &[0], &[3.0, 2.0, -1.0]), Ok(1));
        assert_eq!(greedy(params.clone(), &[1], &[-3.0, -2.0, -3.5]), Ok(0));
        let mut sampler = Sampler::new(params, &[]);
        assert_eq!(sampler.choose(&[3.0, 2.0], 0), Ok(0));
        assert_eq!(sampler.choose(&[3.0, 2.0], 1), Ok(1));
    }

    #[test]
    fn presence_and_frequency_count_the_output_only() {
        let row = [1.0, 0.4];
        let presence = SamplingParams { presence_penalty: 0.5, ..Default::default() };
        assert_eq!(greedy(presence.clone(), &[0, 0, 0], &row), Ok(0));
        let mut sampler = Sampler::new(presence, &[]);
        assert_eq!((sampler.choose(&row, 0), sampler.choose(&row, 1), sampler.choose(&row, 2)), (Ok(0), Ok(0), Ok(0)));
        let mut sampler = Sampler::new(SamplingParams { frequency_penalty: 0.4, ..Default::default() }, &[]);
        let chosen: Vec<_> = (0..4).map(|i| sampler.choose(&row, i)).collect();
        // 1.0, 0.6, then 0.2 < 0.4, then 0.2 > 0.0.
        assert_eq!(chosen, [Ok(0), Ok(0), Ok(1), Ok(0)]);
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let row: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
        let draw = |seed| {
            let params = SamplingParams { temperature: 1.0, seed, ..Default::default() };
            let mut sampler = Sampler::new(params, &[]);
            (0..50).map(|i| sampler.choose(&row, i).expect("valid")).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let bad: [(&str, SamplingParams); 5] = [
            ("temperature", SamplingParams { temperature: -1.0, ..Default::default() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.0, ..Default::default() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..Default::default() }),
            ("token 9", SamplingParams { logit_bias: vec![(9, 1.0)], ..Default::default() }),
        ];
        for (word, params) in bad {
            let error = params.check(9).expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(SamplingParams::default().check(9), Ok(()));
    }
}
