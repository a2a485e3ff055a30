//! From two rows of log-probs to a few numbers.
//!
//! The divergence is KL(reference ‖ candidate) = Σ p (ln p − ln q) over the whole vocabulary, in f64. Neither side is
//! trusted to be normalised: both are normalised here, and a candidate row that was not is counted, because log-probs
//! that sum to more than one would look better than they are.
//!
//! The reducer also checks itself. For each row it draws one token x from p by a path that shares no sum with the
//! divergence; ln p(x) − ln q(x) has the row's divergence as its mean, so over many rows the difference divided by its
//! known deviation is a standard normal number ([`PathResult::self_check_z`]). A wrong direction, a truncated sum or a
//! shifted index shows there.

use crate::rng::Rng;
use crate::stats::{Cluster, cluster_mean, quantile};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// How far the sum of a candidate's probabilities may stand from 1, as a logarithm. The f32 rounding of log-probs
/// around −15 is 1e-6 each and partly cancels in the sum; a hundred times that is no rounding.
pub const NORMALISED_WITHIN: f64 = 1e-4;

/// The reference is sure of its first choice above this probability.
pub const SURE: f64 = 0.9;

/// What two rows of log-probs say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowResult {
    /// KL(reference ‖ candidate), nats.
    pub kld: f64,
    /// −ln p of the token that follows, reference and candidate.
    pub nll: Option<(f64, f64)>,
    /// −ln p of the token after that under the reference: larger than `nll` on average if rows and tokens are aligned.
    pub nll_shifted: Option<f64>,
    /// Reference's probability of its first choice.
    pub top_probability: f64,
    /// Distance of the reference's first two choices, nats.
    pub gap: f64,
    /// Whether both have the same first choice.
    pub same_top: bool,
    /// The candidate's probabilities did not sum to 1.
    pub unnormalised: bool,
    /// Self-check: ln p(x) − ln q(x) − kld for the drawn x, and its variance.
    pub check: (f64, f64),
}

/// Why a row yields no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRow {
    /// NaN, +∞, or −∞ where the reference gives the token a chance.
    Candidate,
    /// The same in the reference.
    Reference,
}

/// Compares a reference row with a candidate row; `next` are the ids that follow, as far as there are any.
///
/// # Errors
/// One of the rows is no distribution.
pub fn compare(reference: &[f32], candidate: &[f32], next: &[u32], rng: &mut Rng) -> Result<RowResult, BadRow> {
    let ref_sum = log_sum(reference).ok_or(BadRow::Reference)?;
    let cand_sum = log_sum(candidate).ok_or(BadRow::Candidate)?;
    let target = rng.uniform();
    let (mut kld, mut square, mut cumulated, mut drawn) = (0.0, 0.0, 0.0, None);
    let (mut best, mut second) = ((f64::NEG_INFINITY, 0), f64::NEG_INFINITY);
    let mut candidate_best = (f32::NEG_INFINITY, 0);
    for (i, (lp, lq)) in reference.iter().zip(candidate).enumerate() {
        if *lq > candidate_best.0 {
            candidate_best = (*lq, i);
        }
        let lp = f64::from(*lp) - ref_sum;
        if lp > best.0 {
            second = best.0;
            best = (lp, i);
        } else if lp > second {
            second = lp;
        }
        let p = lp.exp();
        if p == 0.0 {
            continue;
        }
        let difference = lp - (f64::from(*lq) - cand_sum);
        if !difference.is_finite() {
            return Err(BadRow::Candidate);
        }
        kld += p * difference;
        square += p * difference * difference;
        cumulated += p;
        if drawn.is_none() && cumulated >= target {
            drawn = Some(difference);
        }
    }
    let at = |row: &[f32], sum: f64, id: u32| row.get(id as usize).map(|lp| sum - f64::from(*lp));
    let both = |id: u32| Some((at(reference, ref_sum, id)?, at(candidate, cand_sum, id)?));
    Ok(RowResult {
        // Rounding may leave a few 1e-17 below zero for equal rows.
        kld: kld.max(0.0),
        nll: next.first().and_then(|id| both(*id)),
        nll_shifted: next.get(1).and_then(|id| at(reference, ref_sum, *id)),
        top_probability: best.0.exp(),
        gap: if second.is_finite() { best.0 - second } else { f64::MAX },
        same_top: best.1 == candidate_best.1,
        unnormalised: cand_sum.abs() > NORMALISED_WITHIN,
        check: (drawn.unwrap_or(0.0) - kld, (square - kld * kld).max(0.0)),
    })
}

/// ln Σ exp(x); `None` with NaN, +∞ or nothing but −∞.
fn log_sum(row: &[f32]) -> Option<f64> {
    let mut max = f32::NEG_INFINITY;
    for x in row {
        if x.is_nan() {
            return None;
        }
        max = max.max(*x);
    }
    if !max.is_finite() {
        return None;
    }
    let max = f64::from(max);
    Some(max + row.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln())
}

/// Gathers the rows of one path.
#[derive(Clone, Debug)]
pub struct Reducer {
    near_tie_nats: f64,
    rng: Rng,
    texts: Vec<TextTotals>,
    rows: Counts,
    klds: Vec<RowKld>,
    check: (f64, f64),
}

/// A row's divergence and where it stands: what a path is compared with the prompt path by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowKld {
    /// Text.
    pub text: usize,
    /// Position of the last id the row has seen.
    pub position: u32,
    /// KL(reference ‖ candidate), nats.
    pub kld: f64,
}

#[derive(Clone, Debug, Default)]
struct TextTotals {
    kld: Cluster,
    delta_nll: Cluster,
    nll_reference: f64,
    nll_shifted: Cluster,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    compared: u64,
    same_top: u64,
    near_tie_flips: u64,
    hard_flips: u64,
    sure: u64,
    sure_flips: u64,
    bad: u64,
    unnormalised: u64,
}

impl Reducer {
    /// For rows of `texts` texts; flips where the reference's first two choices are closer than `near_tie_nats` are
    /// near ties.
    pub fn new(texts: usize, near_tie_nats: f64, seed: u64) -> Self {
        Self {
            near_tie_nats,
            rng: Rng::new(seed),
            texts: vec![TextTotals::default(); texts],
            rows: Counts::default(),
            klds: Vec::new(),
            check: (0.0, 0.0),
        }
    }

    /// Takes the row at `position` of text `text`; the rows themselves are not kept.
    ///
    /// # Errors
    /// The reference's row is no distribution: the measurement cannot go on.
    pub fn add(
        &mut self,
        (text, position): (usize, u32),
        reference: &[f32],
        candidate: &[f32],
        next: &[u32],
    ) -> Result<(), BadRow> {
        match compare(reference, candidate, next, &mut self.rng) {
            Ok(row) => {
                self.klds.push(RowKld { text, position, kld: row.kld });
                self.count(text, &row);
            }
            Err(BadRow::Candidate) => self.rows.bad += 1,
            Err(BadRow::Reference) => return Err(BadRow::Reference),
        }
        Ok(())
    }

    fn count(&mut self, text: usize, row: &RowResult) {
        let totals = &mut self.texts[text];
        totals.kld.sum += row.kld;
        totals.kld.count += 1;
        if let Some((reference, candidate)) = row.nll {
            totals.delta_nll.sum += candidate - reference;
            totals.delta_nll.count += 1;
            totals.nll_reference += reference;
            if let Some(shifted) = row.nll_shifted {
                totals.nll_shifted.sum += shifted - reference;
                totals.nll_shifted.count += 1;
            }
        }
        self.check.0 += row.check.0;
        self.check.1 += row.check.1;
        self.count_choice(row);
    }

    fn count_choice(&mut self, row: &RowResult) {
        let counts = &mut self.rows;
        let sure = row.top_probability > SURE;
        counts.compared += 1;
        counts.unnormalised += u64::from(row.unnormalised);
        counts.sure += u64::from(sure);
        if row.same_top {
            counts.same_top += 1;
        } else if row.gap < self.near_tie_nats {
            counts.near_tie_flips += 1;
        } else {
            counts.hard_flips += 1;
            counts.sure_flips += u64::from(sure);
        }
    }

    /// Divergence of every row so far.
    pub fn rows(&self) -> &[RowKld] {
        &self.klds
    }

    /// The path's numbers beside the `prompt` path's rows; `None` if no row could be compared and none was bad.
    pub fn finish(self, path: &str, what: &str, prompt: &[RowKld]) -> Option<PathResult> {
        let counts = self.rows;
        if counts.compared + counts.bad == 0 {
            return None;
        }
        let klds: Vec<Cluster> = self.texts.iter().map(|text| text.kld).collect();
        let deltas: Vec<Cluster> = self.texts.iter().map(|text| text.delta_nll).collect();
        let delta = cluster_mean(&deltas);
        let scored: u64 = deltas.iter().map(|c| c.count).sum();
        let nll_reference = self.texts.iter().map(|text| text.nll_reference).sum::<f64>() / scored as f64;
        Some(PathResult {
            path: path.to_string(),
            what: what.to_string(),
            rows: counts.compared + counts.bad,
            kld: Divergence::of(&self.klds, &klds),
            prompt_kld_same_rows: mean_at(prompt, &self.klds),
            reference_ppl: delta.map(|_| nll_reference.exp()),
            candidate_ppl: delta.map(|(mean, _, _)| (nll_reference + mean).exp()),
            delta_nll: delta.map(|(mean, _, _)| mean),
            delta_nll_high: delta.map(|(_, _, high)| high),
            same_top_share: (counts.compared > 0).then(|| counts.same_top as f64 / counts.compared as f64),
            near_tie_flips: counts.near_tie_flips,
            hard_flips: counts.hard_flips,
            sure_rows: counts.sure,
            sure_flips: counts.sure_flips,
            bad_rows: counts.bad,
            unnormalised_rows: counts.unnormalised,
            self_check_z: if self.check.1 > 0.0 { self.check.0 / self.check.1.sqrt() } else { 0.0 },
            shift_gain: mean_of(self.texts.iter().map(|text| text.nll_shifted)),
            by_text: klds.iter().map(|c| if c.count == 0 { None } else { Some(c.sum / c.count as f64) }).collect(),
        })
    }
}

/// Mean of `prompt` over the places of `rows`, each as often as it stands there.
fn mean_at(prompt: &[RowKld], rows: &[RowKld]) -> Option<f64> {
    let known: HashMap<(usize, u32), f64> = prompt.iter().map(|row| ((row.text, row.position), row.kld)).collect();
    let same: Vec<f64> = rows.iter().filter_map(|row| known.get(&(row.text, row.position)).copied()).collect();
    (!same.is_empty()).then(|| same.iter().sum::<f64>() / same.len() as f64)
}

fn mean_of(clusters: impl Iterator<Item = Cluster>) -> Option<f64> {
    let (sum, count) = clusters.fold((0.0, 0), |(sum, count), c| (sum + c.sum, count + c.count));
    (count > 0).then(|| sum / count as f64)
}

/// KL(reference ‖ candidate) over the rows of a path, nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Divergence {
    /// Mean over all rows.
    pub mean: f64,
    /// Lower end of the mean's 95 % interval, texts resampled.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// 99.9 % of rows lie below this.
    pub p999: f64,
    /// The worst row.
    pub max: f64,
}

impl Divergence {
    fn of(rows: &[RowKld], by_text: &[Cluster]) -> Option<Self> {
        let (mean, low, high) = cluster_mean(by_text)?;
        let rows: Vec<f64> = rows.iter().map(|row| row.kld).collect();
        let max = rows.iter().copied().fold(0.0, f64::max);
        Some(Self { mean, low, high, p999: quantile(&rows, 0.999)?, max })
    }
}

/// A path's distance from the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PathResult {
    /// The path's name.
    pub path: String,
    /// What the path does, in a sentence.
    pub what: String,
    /// Rows scored.
    pub rows: u64,
    /// KL(reference ‖ candidate) of the rows; absent if none could be compared.
    pub kld: Option<Divergence>,
    /// Mean divergence of the prompt path over the same rows; absent if it was not measured.
    pub prompt_kld_same_rows: Option<f64>,
    /// Perplexity of the reference on these rows; absent if no row has a following token.
    pub reference_ppl: Option<f64>,
    /// Perplexity of the candidate on the same rows.
    pub candidate_ppl: Option<f64>,
    /// Mean of the candidate's minus the reference's −ln p of the following token.
    pub delta_nll: Option<f64>,
    /// Upper end of its 95 % interval.
    pub delta_nll_high: Option<f64>,
    /// Share of rows where both have the same first choice.
    pub same_top_share: Option<f64>,
    /// Rows with another first choice where the reference's first two were close.
    pub near_tie_flips: u64,
    /// Rows with another first choice where they were not.
    pub hard_flips: u64,
    /// Rows where the reference gave its first choice more than 90 %.
    pub sure_rows: u64,
    /// Hard flips among those.
    pub sure_flips: u64,
    /// Rows that were no distribution: NaN, infinite, or no chance for a token that has one.
    pub bad_rows: u64,
    /// Rows whose probabilities did not sum to 1 (they were normalised before comparing).
    pub unnormalised_rows: u64,
    /// The evaluator's check of itself: standard normal when its sums are right.
    pub self_check_z: f64,
    /// How much better the reference predicts the next token than the one after it, nats: positive when rows and
    /// tokens are aligned.
    pub shift_gain: Option<f64>,
    /// Mean divergence by text, in the suite's order.
    pub by_text: Vec<Option<f64>>,
}

impl PathResult {
    /// Relative growth of perplexity.
    pub fn ppl_growth(&self) -> Option<f64> {
        self.delta_nll.map(f64::exp_m1)
    }

    /// Share of hard flips among the rows the reference is sure of.
    pub fn sure_flip_share(&self) -> f64 {
        if self.sure_rows == 0 { 0.0 } else { self.sure_flips as f64 / self.sure_rows as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(p: &[f64]) -> Vec<f32> {
        p.iter().map(|p| p.ln() as f32).collect()
    }

    /// A random distribution of `n` tokens, peaked by `sharpness`.
    fn random(n: usize, sharpness: f64, rng: &mut Rng) -> Vec<f32> {
        let logits: Vec<f32> = (0..n).map(|_| (sharpness * rng.normal()) as f32).collect();
        let sum = log_sum(&logits).unwrap();
        logits.iter().map(|x| (f64::from(*x) - sum) as f32).collect()
    }

    fn perturbed(row: &[f32], noise: f64, rng: &mut Rng) -> Vec<f32> {
        let noisy: Vec<f32> = row.iter().map(|x| x + (noise * rng.normal()) as f32).collect();
        let sum = log_sum(&noisy).unwrap();
        noisy.iter().map(|x| (f64::from(*x) - sum) as f32).collect()
    }

    #[test]
    fn a_row_by_hand() {
        let (p, q) = (logs(&[0.5, 0.25, 0.25]), logs(&[0.25, 0.5, 0.25]));
        let row = compare(&p, &q, &[1, 2], &mut Rng::new(1)).unwrap();
        // 0.5 ln 2 − 0.25 ln 2; f32 logs carry 6e-8.
        assert!((row.kld - 0.25 * 2f64.ln()).abs() < 1e-7);
        let (reference, candidate) = row.nll.unwrap();
        assert!((reference - 4f64.ln()).abs() < 1e-7 && (candidate - 2f64.ln()).abs() < 1e-7);
        assert!((row.gap - 2f64.ln()).abs() < 1e-7 && (row.top_probability - 0.5).abs() < 1e-7);
        assert!(!row.same_top && !row.unnormalised);
    }

    #[test]
    fn the_direction_is_reference_to_candidate() {
        let (p, q) = (logs(&[0.9, 0.1]), logs(&[0.5, 0.5]));
        let kld = |p, q| compare(p, q, &[], &mut Rng::new(1)).unwrap().kld;
        assert!((kld(&p, &q) - (0.9 * 1.8f64.ln() + 0.1 * 0.2f64.ln())).abs() < 1e-7);
        assert!((kld(&q, &p) - (0.5 * (5.0f64 / 9.0).ln() + 0.5 * 5f64.ln())).abs() < 1e-7);
    }

    #[test]
    fn equal_rows_diverge_by_nothing() {
        let row = random(5_000, 3.0, &mut Rng::new(3));
        assert_eq!(compare(&row, &row, &[], &mut Rng::new(1)).unwrap().kld, 0.0);
    }

    #[test]
    fn probabilities_above_one_gain_nothing_and_are_counted() {
        let mut rng = Rng::new(5);
        let p = random(1_000, 2.0, &mut rng);
        let q = perturbed(&p, 0.5, &mut rng);
        let inflated: Vec<f32> = q.iter().map(|x| x + 0.3).collect();
        let honest = compare(&p, &q, &[7], &mut Rng::new(1)).unwrap();
        let cheat = compare(&p, &inflated, &[7], &mut Rng::new(1)).unwrap();
        assert!((honest.kld - cheat.kld).abs() < 1e-6 && (honest.nll.unwrap().1 - cheat.nll.unwrap().1).abs() < 1e-6);
        assert!(cheat.unnormalised && !honest.unnormalised);
    }

    #[test]
    fn what_is_no_distribution_is_bad() {
        let p = logs(&[0.5, 0.5]);
        let bad = |q: &[f32]| compare(&p, q, &[], &mut Rng::new(1)).err();
        assert_eq!(bad(&[f32::NAN, 0.0]), Some(BadRow::Candidate));
        assert_eq!(bad(&[f32::INFINITY, 0.0]), Some(BadRow::Candidate));
        assert_eq!(bad(&[f32::NEG_INFINITY, 0.0]), Some(BadRow::Candidate));
        assert_eq!(compare(&[f32::NAN, 0.0], &p, &[], &mut Rng::new(1)).err(), Some(BadRow::Reference));
        // A token neither side gives a chance is no difference.
        let masked = [0.5f32.ln(), 0.5f32.ln(), f32::NEG_INFINITY];
        assert_eq!(compare(&masked, &masked, &[], &mut Rng::new(1)).unwrap().kld, 0.0);
    }

    /// Rows of a text whose next tokens are drawn from the reference.
    fn reduce(noise: f64, rows: usize, seed: u64, bend: impl Fn(&mut Vec<f32>, &mut Vec<f32>)) -> PathResult {
        let mut rng = Rng::new(seed);
        let mut reducer = Reducer::new(4, 0.1, seed);
        for i in 0..rows {
            let mut p = random(200, 2.5, &mut rng);
            let mut q = perturbed(&p, noise, &mut rng);
            let drawn = |rng: &mut Rng| {
                let mut left = rng.uniform();
                p.iter().position(|lp| {
                    left -= f64::from(*lp).exp();
                    left <= 0.0
                })
            };
            let next = [drawn(&mut rng).unwrap_or(0) as u32, rng.below(200) as u32];
            bend(&mut p, &mut q);
            reducer.add((i % 4, i as u32), &p, &q, &next).unwrap();
        }
        reducer.finish("prompt", "test", &[]).unwrap()
    }

    #[test]
    fn on_text_drawn_from_the_reference_growth_of_nll_is_the_divergence() {
        let result = reduce(0.3, 4_000, 9, |_, _| {});
        let (kld, delta) = (result.kld.unwrap().mean, result.delta_nll.unwrap());
        // ln p − ln q has a deviation of about √(2·kld) a row; four standard errors.
        let standard_error = (2.0 * kld / 4_000.0).sqrt();
        assert!((delta - kld).abs() < 4.0 * standard_error, "{delta} {kld}");
        assert!(result.self_check_z.abs() < 4.0 && result.shift_gain.unwrap() > 1.0);
        let growth = result.candidate_ppl.unwrap() / result.reference_ppl.unwrap() - 1.0;
        assert!((growth - result.ppl_growth().unwrap()).abs() < 1e-9);
    }

    #[test]
    fn flips_are_counted_by_how_sure_the_reference_was() {
        let mut reducer = Reducer::new(1, 0.1, 1);
        let add = |reducer: &mut Reducer, p: &[f64], q: &[f64]| reducer.add((0, 0), &logs(p), &logs(q), &[0]).unwrap();
        add(&mut reducer, &[0.51, 0.49], &[0.49, 0.51]);
        add(&mut reducer, &[0.7, 0.3], &[0.4, 0.6]);
        add(&mut reducer, &[0.95, 0.05], &[0.4, 0.6]);
        add(&mut reducer, &[0.95, 0.05], &[0.9, 0.1]);
        reducer.add((0, 0), &logs(&[0.5, 0.5]), &[f32::NAN, 0.0], &[0]).unwrap();
        let result = reducer.finish("prompt", "test", &[]).unwrap();
        assert_eq!((result.near_tie_flips, result.hard_flips), (1, 2));
        assert_eq!((result.sure_rows, result.sure_flips, result.bad_rows, result.rows), (2, 1, 1, 5));
        assert_eq!(result.same_top_share, Some(0.25));
        assert_eq!(result.sure_flip_share(), 0.5);
    }

    #[test]
    fn nothing_compared_is_no_number() {
        assert_eq!(Reducer::new(1, 0.1, 1).finish("prompt", "test", &[]), None);
        let mut reducer = Reducer::new(1, 0.1, 1);
        reducer.add((0, 0), &logs(&[0.5, 0.5]), &[f32::NAN, 0.0], &[0]).unwrap();
        let result = reducer.finish("prompt", "test", &[]).unwrap();
        assert_eq!((result.kld, result.same_top_share, result.delta_nll, result.bad_rows), (None, None, None, 1));
    }
}
