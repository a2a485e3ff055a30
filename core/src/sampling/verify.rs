//! Which drafted tokens stand: the rule that leaves the output distribution as it is without drafts.
//!
//! With q, the distribution a token d was drawn from, and p, the model's: d stands with probability min(1, p(d)/q(d));
//! otherwise a token drawn from max(0, p - q), scaled to 1, takes its place and the rest of the draft falls (Leviathan
//! et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).
//!
//! A drafter that is certain has q = 1 at d. The rule then says: d stands with probability p(d), else the token is
//! drawn from p without d. Drawing x from p and letting d stand if x = d is the same rule, and x falls as it would have
//! without a draft: such drafters change neither the distribution nor, for a given seed, the tokens. Greedy choice is
//! the case of a p that is certain too.
//!
//! The rule of the certain drafter is right however d came about, so it also takes over when a stated q cannot be one.

use super::{Lane, Sampler, SamplingError};
use crate::plugin::Draft;

/// What came of a draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// New tokens of the output: the accepted ones and one more.
    pub tokens: Vec<u32>,
    /// Drafted tokens that stand: the first of `tokens`.
    pub accepted: usize,
}

/// How far the stated probabilities of a proposal may sum from 1: f32 sums over a large vocabulary.
const SUM_TOLERANCE: f64 = 1e-3;

impl Sampler {
    /// Chooses tokens `index ..` of the output from `rows`, one row after the last known token and one after each
    /// drafted token, and takes them into the history.
    ///
    /// # Errors
    /// A row that is not a row of logits, or not one row for each token.
    pub fn verify(&mut self, rows: &[f32], vocab: usize, draft: &Draft, index: u64) -> Result<Verified, SamplingError> {
        let tokens = draft.tokens.len() + 1;
        if vocab == 0 || rows.len() != tokens * vocab {
            return Err(SamplingError::Shape { rows: rows.len(), tokens, vocab });
        }
        let mut out = Verified::default();
        for (i, row) in rows.chunks_exact(vocab).enumerate() {
            self.prepare(row)?;
            let drafted = draft.tokens.get(i).copied();
            let proposal = draft.probs.as_ref().and_then(|probs| probs.get(i));
            let token = match drafted {
                Some(drafted) => self.stand_in(drafted, proposal, index + i as u64),
                None => self.draw(index + i as u64),
            };
            self.commit(token);
            out.tokens.push(token);
            if drafted != Some(token) {
                break;
            }
            out.accepted += 1;
        }
        Ok(out)
    }

    /// The drafted token if it stands, else the one in its place.
    fn stand_in(&self, drafted: u32, proposal: Option<&Vec<(u32, f32)>>, index: u64) -> u32 {
        let Some(proposal) = proposal.filter(|q| !self.params.greedy() && could_have_drawn(q, drafted)) else {
            return self.draw(index);
        };
        let p = self.drawn_from.probability(drafted);
        let q: f64 = proposal.iter().filter(|entry| entry.0 == drafted).map(|entry| f64::from(entry.1)).sum();
        if self.random.uniform(index, Lane::Accept) * q < p {
            return drafted;
        }
        let u = self.random.uniform(index, Lane::Residual);
        // Nothing is left only if p and q agree up to rounding.
        self.drawn_from.residual_at(proposal, u).unwrap_or_else(|| self.draw(index))
    }
}

fn could_have_drawn(proposal: &[(u32, f32)], drafted: u32) -> bool {
    let valid = proposal.iter().all(|entry| entry.1 >= 0.0);
    let total: f64 = proposal.iter().map(|entry| f64::from(entry.1)).sum();
    let has = proposal.iter().any(|entry| entry.0 == drafted && entry.1 > 0.0);
    valid && has && (total - 1.0).abs() < SUM_TOLERANCE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    const VOCAB: usize = 8;

    /// Logits of a second-order toy model: the row after `history`.
    fn model(history: &[u32]) -> Vec<f32> {
        let last = history.last().copied().unwrap_or(0);
        let before = history.iter().rev().nth(1).copied().unwrap_or(0);
        (0..VOCAB as u32).map(|v| ((v * 5 + last * 3 + before * 7) % 11) as f32 * 0.35).collect()
    }

    /// A draft of two tokens, drawn from a distribution that differs from the model's, or certain.
    fn propose(history: &[u32], random: &crate::sampling::RandomStream, certain: bool) -> Draft {
        let mut draft = Draft { probs: (!certain).then(Vec::new), ..Default::default() };
        for i in 0..2u64 {
            let last = draft.tokens.last().or(history.last()).copied().unwrap_or(0);
            let weights: Vec<f32> = (0..VOCAB as u32).map(|v| 1.0 + ((v + last) % 4) as f32).collect();
            let total: f32 = weights.iter().sum();
            let q: Vec<(u32, f32)> = weights.iter().enumerate().map(|(v, w)| (v as u32, w / total)).collect();
            let mut u = random.uniform(i, Lane::Draw) as f32;
            let token = q
                .iter()
                .find(|entry| {
                    u -= entry.1;
                    u < 0.0
                })
                .map_or(VOCAB as u32 - 1, |entry| entry.0);
            draft.tokens.push(token);
            if let Some(probs) = &mut draft.probs {
                probs.push(q);
            }
        }
        draft
    }

    /// Three output tokens by drafting.
    fn with_drafts(params: &SamplingParams, prompt: &[u32], drafter: u64, certain: bool) -> Vec<u32> {
        let mut sampler = Sampler::new(params.clone(), prompt);
        let mut tokens = prompt.to_vec();
        while tokens.len() < prompt.len() + 3 {
            let made = tokens.len() - prompt.len();
            let random = crate::sampling::RandomStream::new(drafter * 31 + made as u64);
            let draft = propose(&tokens, &random, certain);
            let mut rows = model(&tokens);
            for i in 0..draft.tokens.len() {
                let seen: Vec<u32> = tokens.iter().chain(&draft.tokens[..=i]).copied().collect();
                rows.extend(model(&seen));
            }
            tokens.extend(sampler.verify(&rows, VOCAB, &draft, made as u64).expect("valid rows").tokens);
        }
        tokens[prompt.len()..prompt.len() + 3].to_vec()
    }

    fn without_drafts(params: &SamplingParams, prompt: &[u32]) -> Vec<u32> {
        let mut sampler = Sampler::new(params.clone(), prompt);
        let mut tokens = prompt.to_vec();
        for i in 0..3 {
            let token = sampler.choose(&model(&tokens), i).expect("valid row");
            tokens.push(token);
        }
        tokens.split_off(prompt.len())
    }

    /// The exact probability of every output of three tokens, from the distributions alone.
    fn exact(params: &SamplingParams, prompt: &[u32]) -> Vec<f64> {
        let mut out = vec![0.0; VOCAB.pow(3)];
        for (cell, p) in out.iter_mut().enumerate() {
            let path = [cell / VOCAB / VOCAB, cell / VOCAB % VOCAB, cell % VOCAB].map(|t| t as u32);
            let mut sampler = Sampler::new(params.clone(), prompt);
            let mut tokens = prompt.to_vec();
            *p = 1.0;
            for token in path {
                sampler.prepare(&model(&tokens)).expect("valid row");
                *p *= sampler.drawn_from.probability(token);
                sampler.commit(token);
                tokens.push(token);
            }
        }
        out
    }

    fn cases() -> Vec<(&'static str, SamplingParams)> {
        let base = SamplingParams { temperature: 0.9, ..Default::default() };
        vec![
            ("temperature", base.clone()),
            ("top_k", SamplingParams { top_k: 4, ..base.clone() }),
            ("top_p", SamplingParams { top_p: 0.8, ..base.clone() }),
            ("min_p", SamplingParams { min_p: 0.2, ..base.clone() }),
            (
                "penalties",
                SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.4, frequency_penalty: 0.3, ..base },
            ),
        ]
    }

    /// Chi-square of counts against probabilities in standard deviations above its mean, cells below 5 expected pooled.
    fn excess(counts: &[f64], probabilities: &[f64], draws: f64) -> f64 {
        let (mut chi, mut cells, mut pooled) = (0.0, 0.0, (0.0, 0.0));
        for (count, p) in counts.iter().zip(probabilities) {
            let expected = p * draws;
            if expected == 0.0 {
                assert_eq!(*count, 0.0, "a token outside the support was drawn");
            } else if expected < 5.0 {
                pooled = (pooled.0 + count, pooled.1 + expected);
            } else {
                chi += (count - expected).powi(2) / expected;
                cells += 1.0;
            }
        }
        if pooled.1 > 5.0 {
            chi += (pooled.0 - pooled.1).powi(2) / pooled.1;
            cells += 1.0;
        }
        let freedom: f64 = cells - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn drafting_leaves_the_distribution_of_whole_outputs() {
        let prompt = [3, 1];
        let draws = 120_000u64;
        for (name, params) in cases() {
            let exact = exact(&params, &prompt);
            for certain in [false, true] {
                let mut counts = vec![0.0; exact.len()];
                for seed in 0..draws {
                    let params = SamplingParams { seed, ..params.clone() };
                    let path = with_drafts(&params, &prompt, seed + 1_000_000, certain);
                    counts[path.iter().fold(0, |cell, t| cell * VOCAB + *t as usize)] += 1.0;
                }
                let excess = excess(&counts, &exact, draws as f64);
                // 4.5 deviations: one false alarm in 10^5 or so; a residual drawn from p lies hundreds above.
                assert!(excess < 4.5, "{name}, certain {certain}: {excess}");
            }
        }
    }

    #[test]
    fn a_certain_drafter_changes_no_token() {
        for (name, params) in cases() {
            for seed in 0..200 {
                let params = SamplingParams { seed, ..params.clone() };
                let drafted = with_drafts(&params, &[3, 1], seed, true);
                assert_eq!(drafted, without_drafts(&params, &[3, 1]), "{name}, seed {seed}");
            }
        }
    }

    #[test]
    fn greedy_accepts_exact_matches_only() {
        let mut rows = vec![0.0; 3 * VOCAB];
        rows[2] = 1.0;
        rows[VOCAB + 5] = 1.0;
        rows[2 * VOCAB + 1] = 1.0;
        let verify = |tokens: Vec<u32>| {
            let probs = Some(vec![vec![(2, 0.5), (5, 0.5)]; 2]);
            let mut sampler = Sampler::new(SamplingParams::default(), &[]);
            sampler.verify(&rows, VOCAB, &Draft { tokens, probs }, 0).expect("valid rows")
        };
        assert_eq!(verify(vec![2, 5]), Verified { tokens: vec![2, 5, 1], accepted: 2 });
        assert_eq!(verify(vec![2, 2]), Verified { tokens: vec![2, 5], accepted: 1 });
        assert_eq!(verify(vec![5, 5]), Verified { tokens: vec![2], accepted: 0 });
    }

    #[test]
    fn a_proposal_that_cannot_be_is_treated_as_certain() {
        let params = SamplingParams { temperature: 1.0, ..Default::default() };
        let row = model(&[1]);
        let rows = [row.clone(), row].concat();
        for q in [vec![], vec![(0, 1.0f32)], vec![(4, 7.0)], vec![(4, f32::NAN)], vec![(4, 2.0), (5, -1.0)]] {
            for seed in 0..50 {
                let params = SamplingParams { seed, ..params.clone() };
                let draft = Draft { tokens: vec![4], probs: Some(vec![q.clone()]) };
                let with = Sampler::new(params.clone(), &[]).verify(&rows, VOCAB, &draft, 0).expect("valid rows");
                let plain = Sampler::new(params, &[]).choose(&rows[..VOCAB], 0).expect("valid row");
                assert_eq!(with.tokens[0], plain);
            }
        }
    }

    #[test]
    fn rows_must_fit_the_draft() {
        let mut sampler = Sampler::new(SamplingParams::default(), &[]);
        let draft = Draft { tokens: vec![1], probs: None };
        assert!(matches!(sampler.verify(&[0.0; 8], VOCAB, &draft, 0), Err(SamplingError::Shape { .. })));
    }
}
