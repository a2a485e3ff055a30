//! The distribution a token is drawn from: temperature and filters over a logits row.

use super::SamplingParams;
use super::exp::exp;
use super::logprob::top_entries;
use super::sampler::{SamplingError, highest};

/// Tokens that may be drawn, each with its probability; they sum to 1.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    entries: Vec<(u32, f64)>,
    /// Working space, kept so that none is allocated a token.
    weights: Vec<f64>,
    scratch: Vec<(u32, f64)>,
}

/// e^-60 times the largest vocabulary is far below the 2^-53 steps of a uniform number: such a token cannot be drawn.
const NEGLIGIBLE_NATS: f64 = -60.0;

/// The distribution of a row whose bias and penalties have been applied. With temperature 0 all probability is on the
/// greedy token.
///
/// # Errors
/// A row that is not a row of logits.
pub fn distribution(params: &SamplingParams, row: &[f32]) -> Result<Distribution, SamplingError> {
    let mut out = Distribution::default();
    out.fill(params, row)?;
    Ok(out)
}

impl Distribution {
    /// Tokens and their probabilities, in a fixed order.
    pub fn entries(&self) -> &[(u32, f64)] {
        &self.entries
    }

    /// The probability of a token; 0 for one that was dropped.
    pub fn probability(&self, token: u32) -> f64 {
        self.entries.iter().find(|entry| entry.0 == token).map_or(0.0, |entry| entry.1)
    }

    /// The token at `u` in [0, 1) of the cumulated probabilities.
    pub fn at(&self, u: f64) -> Option<u32> {
        draw(&self.entries, u)
    }

    /// The token at `u` of what is left of this distribution above `proposed`: max(0, p - q), scaled to 1. `None` if
    /// nothing is left.
    pub(super) fn residual_at(&self, proposed: &[(u32, f32)], u: f64) -> Option<u32> {
        let share =
            |token: u32| proposed.iter().filter(|entry| entry.0 == token).map(|entry| f64::from(entry.1)).sum::<f64>();
        let rest: Vec<(u32, f64)> =
            self.entries.iter().map(|&(token, p)| (token, (p - share(token)).max(0.0))).collect();
        let total: f64 = rest.iter().map(|entry| entry.1).sum();
        if total > 0.0 { draw(&rest, u * total) } else { None }
    }

    pub(super) fn fill(&mut self, params: &SamplingParams, row: &[f32]) -> Result<(), SamplingError> {
        let best = highest(row)?;
        self.entries.clear();
        if params.greedy() {
            self.entries.push((best.0, 1.0));
            return Ok(());
        }
        let max = f64::from(best.1);
        let per_nat = 1.0 / f64::from(params.temperature);
        let weight = |x: f32| {
            let nats = (f64::from(x) - max) * per_nat;
            let weight = exp(nats).min(1.0);
            if nats < NEGLIGIBLE_NATS { 0.0 } else { weight }
        };
        let top_k = params.top_k as usize;
        if top_k > 0 && top_k < row.len() {
            self.entries.extend(top_entries(row, top_k).into_iter().map(|(id, x)| (id, weight(x))));
            self.entries.retain(|entry| entry.1 > 0.0);
        } else {
            self.weights.clear();
            self.weights.extend(row.iter().map(|&x| weight(x)));
            self.entries.extend((0..).zip(self.weights.iter().copied()).filter(|entry| entry.1 > 0.0));
        }
        if params.top_p < 1.0 {
            self.keep_top_p(f64::from(params.top_p));
        }
        if params.min_p > 0.0 {
            // The likeliest token has weight 1.
            self.entries.retain(|entry| entry.1 >= f64::from(params.min_p));
        }
        let total: f64 = self.entries.iter().map(|entry| entry.1).sum();
        self.entries.iter_mut().for_each(|entry| entry.1 /= total);
        Ok(())
    }

    /// Keeps the smallest set of likeliest entries that holds this share of the weight, in the order they have.
    ///
    /// One pass adds up weights by their size class; only the class in which the share is reached has to be sorted.
    fn keep_top_p(&mut self, top_p: f64) {
        let wanted = top_p * self.entries.iter().map(|entry| entry.1).sum::<f64>();
        let lightest = size_class(NEGLIGIBLE_NATS.exp() / 2.0);
        let masses = &mut self.weights;
        masses.clear();
        masses.resize(size_class(1.0) - lightest + 1, 0.0);
        self.entries.iter().for_each(|entry| masses[size_class(entry.1) - lightest] += entry.1);
        let mut mass = 0.0;
        let mut edge = masses.len();
        while edge > 0 && mass < wanted {
            edge -= 1;
            mass += masses[edge];
        }
        mass -= masses[edge];
        let edge = edge + lightest;
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        self.scratch.clear();
        self.scratch.extend(self.entries.iter().filter(|entry| size_class(entry.1) == edge));
        self.scratch.sort_unstable_by(order);
        let reached = |entry: &&(u32, f64)| {
            mass += entry.1;
            mass >= wanted
        };
        // Sums in another order may end a little below the share wanted: then the whole class is kept.
        let last = self.scratch.iter().find(reached).or(self.scratch.last()).copied();
        if let Some(last) = last {
            self.entries.retain(|entry| order(entry, &last).is_le());
        }
    }
}

/// Numbers with the same exponent and the same first four bits behind the point are of one class; classes ascend.
fn size_class(weight: f64) -> usize {
    (weight.to_bits() >> 48) as usize
}

/// The entry at `u` of the cumulated weights; rounding at the end falls to the last that has any.
fn draw(entries: &[(u32, f64)], u: f64) -> Option<u32> {
    let mut below = 0.0;
    for &(token, p) in entries {
        below += p;
        if u < below {
            return Some(token);
        }
    }
    entries.iter().rev().find(|entry| entry.1 > 0.0).map(|entry| entry.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(probabilities: &[f64]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() as f32).collect()
    }

    fn ids(params: &SamplingParams, row: &[f32]) -> Vec<u32> {
        let mut ids: Vec<u32> = distribution(params, row).expect("a valid row").entries().iter().map(|e| e.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn filters_keep_what_they_say() {
        let row = row(&[0.1, 0.4, 0.05, 0.3, 0.15]);
        let base = SamplingParams { temperature: 1.0, ..Default::default() };
        assert_eq!(ids(&base, &row), [0, 1, 2, 3, 4]);
        assert_eq!(ids(&SamplingParams { top_k: 2, ..base.clone() }, &row), [1, 3]);
        assert_eq!(ids(&SamplingParams { top_p: 0.69, ..base.clone() }, &row), [1, 3]);
        assert_eq!(ids(&SamplingParams { top_p: 0.71, ..base.clone() }, &row), [1, 3, 4]);
        assert_eq!(ids(&SamplingParams { min_p: 0.35, ..base.clone() }, &row), [1, 3, 4]);
        // Of the three kept by top-k, 0.4 + 0.3 are 82 % of the mass.
        assert_eq!(ids(&SamplingParams { top_k: 3, top_p: 0.8, ..base.clone() }, &row), [1, 3]);
    }

    #[test]
    fn ties_at_the_edge_keep_the_lower_id() {
        let params = SamplingParams { temperature: 1.0, top_k: 2, ..Default::default() };
        assert_eq!(ids(&params, &[1.0, 1.0, 1.0, 1.0]), [0, 1]);
        let params = SamplingParams { temperature: 1.0, top_p: 0.5, ..Default::default() };
        assert_eq!(ids(&params, &[1.0, 1.0, 1.0, 1.0]), [0, 1]);
    }

    #[test]
    fn temperature_is_a_power_of_the_probabilities() {
        let row = row(&[0.1, 0.4, 0.5]);
        let at_half = distribution(&SamplingParams { temperature: 0.5, ..Default::default() }, &row).expect("valid");
        let squares = 0.01 + 0.16 + 0.25;
        // The logits are rounded to f32: 1e-7 relative.
        assert!((at_half.probability(1) - 0.16 / squares).abs() < 1e-6);
        let tiny = distribution(&SamplingParams { temperature: 1e-30, ..Default::default() }, &row).expect("valid");
        assert_eq!(tiny.entries(), [(2, 1.0)]);
    }

    #[test]
    fn top_p_cuts_many_equal_tokens_in_half() {
        let params = SamplingParams { temperature: 1.0, top_p: 0.5, ..Default::default() };
        let kept = distribution(&params, &[0.0; 10_000]).expect("valid");
        let ids: Vec<u32> = kept.entries().iter().map(|entry| entry.0).collect();
        assert!(ids.iter().copied().eq(0..5000), "{} kept", ids.len());
    }

    #[test]
    fn top_p_equals_a_full_sort() {
        let random = crate::sampling::RandomStream::new(4);
        for (width, spread) in [(50, 1.0), (5_000, 0.5), (5_000, 6.0)] {
            let draw = |i| random.uniform(i, crate::sampling::Lane::Draw) as f32 * spread;
            let row: Vec<f32> = (0..width).map(draw).collect();
            let all = distribution(&SamplingParams { temperature: 1.0, ..Default::default() }, &row).expect("valid");
            let mut sorted = all.entries().to_vec();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            for top_p in [0.01, 0.3, 0.9, 0.999] {
                let mut mass = 0.0;
                let count = sorted
                    .iter()
                    .take_while(|entry| {
                        let more = mass < f64::from(top_p);
                        mass += entry.1;
                        more
                    })
                    .count();
                let params = SamplingParams { temperature: 1.0, top_p, ..Default::default() };
                let mut wanted: Vec<u32> = sorted[..count].iter().map(|entry| entry.0).collect();
                wanted.sort_unstable();
                assert_eq!(ids(&params, &row), wanted, "width {width}, spread {spread}, top_p {top_p}");
            }
        }
    }

    #[test]
    fn masked_tokens_are_never_drawn() {
        let row = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        let params = SamplingParams { temperature: 2.0, ..Default::default() };
        assert_eq!(distribution(&params, &row).expect("valid").entries(), [(1, 1.0)]);
    }
}
