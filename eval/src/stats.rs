//! Medians, spreads and intervals.
//!
//! Timing noise is skewed and has outliers on one side, so the middle is the median and the interval comes from
//! resampling. Repeats of one thing are resampled one by one; tokens of one text belong together and are resampled
//! text by text.

use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Resamples behind every interval: at 2,000 the ends of a 95 % interval move by about 1 % of its width from seed to
/// seed.
pub const RESAMPLES: usize = 2_000;

/// A figure measured several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Measured {
    /// Middle of the samples.
    pub median: f64,
    /// Lower end of the 95 % bootstrap interval of the median.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Width of the middle 80 % of the samples as a share of the median.
    pub spread_share: f64,
    /// Every sample, in the order taken.
    pub samples: Vec<f64>,
}

impl Measured {
    /// The figure behind `samples`; `None` without any or if one is not finite.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        if samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let middle = median(&samples)?;
        let mut rng = Rng::new(samples.len() as u64);
        let (low, high) = bootstrap_interval(&samples, 0.95, &mut rng, |s| median(s).unwrap_or(f64::NAN))?;
        Some(Self { median: middle, low, high, spread_share: spread_share(&samples)?, samples })
    }

    /// How far the highest sample stands above the median, as a share of it.
    pub fn above_share(&self) -> f64 {
        let highest = self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.median > 0.0 { (highest / self.median - 1.0).max(0.0) } else { 0.0 }
    }
}

/// The value below which a share `q` of `values` lies, between neighbours by straight line.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_sorted(&sorted, q)
}

/// [`quantile`] of values already in ascending order.
pub fn quantile_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// The middle of `values`.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Width of the middle 80 % of `values` as a share of their median.
pub fn spread_share(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = quantile_sorted(&sorted, 0.5)?;
    let width = quantile_sorted(&sorted, 0.9)? - quantile_sorted(&sorted, 0.1)?;
    Some(if middle == 0.0 { 0.0 } else { width / middle.abs() })
}

/// Percentile bootstrap: the interval that holds `statistic` of a share `confidence` of resamples of `values`.
pub fn bootstrap_interval<T: Clone>(
    values: &[T],
    confidence: f64,
    rng: &mut Rng,
    statistic: impl Fn(&[T]) -> f64,
) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let mut sample = values.to_vec();
    let mut found: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for slot in &mut sample {
                *slot = values[rng.below(values.len())].clone();
            }
            statistic(&sample)
        })
        .collect();
    found.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Some((quantile_sorted(&found, tail)?, quantile_sorted(&found, 1.0 - tail)?))
}

/// The bootstrap distribution of a median, exactly: what infinitely many resamples would give, without chance.
///
/// Drawing n of n sorted values with replacement, the two middle order statistics k and k+1 stand at i < j when k draws
/// lie at or below i (one of them at i) and the others at or above j (one of them at j); that is a product of powers.
#[derive(Clone, Debug, PartialEq)]
pub struct MedianBootstrap {
    /// Possible medians, ascending, each with its probability.
    points: Vec<(f64, f64)>,
}

impl MedianBootstrap {
    /// Of `values`; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n == 0 {
            return None;
        }
        let mut points = if n % 2 == 1 { odd(&sorted) } else { even(&sorted) };
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(Self { points })
    }

    /// The interval that holds a share `confidence` of the medians.
    pub fn interval(&self, confidence: f64) -> (f64, f64) {
        let tail = (1.0 - confidence) / 2.0;
        (self.quantile(tail), self.quantile(1.0 - tail))
    }

    /// Probability of a median at or below `value`.
    pub fn at_most(&self, value: f64) -> f64 {
        self.points.iter().filter(|(x, _)| *x <= value).map(|(_, p)| p).sum::<f64>().min(1.0)
    }

    fn quantile(&self, q: f64) -> f64 {
        let mut sum = 0.0;
        for (value, probability) in &self.points {
            sum += probability;
            // Rounding of the summed powers is below 1e-12.
            if sum >= q - 1e-12 {
                return *value;
            }
        }
        self.points.last().map_or(f64::NAN, |(value, _)| *value)
    }
}

/// ln of the number of ways to choose `k` of `n`.
fn ln_choose(n: usize, k: usize) -> f64 {
    (1..=k).map(|i| ((n - k + i) as f64 / i as f64).ln()).sum()
}

/// P(order statistic `k` of n draws stands at or below the `i`-th of n values), both from 1.
fn order_cdf(n: usize, k: usize, i: usize) -> f64 {
    let below = i as f64 / n as f64;
    (k..=n)
        .map(|draws| ln_choose(n, draws).exp() * below.powi(draws as i32) * (1.0 - below).powi((n - draws) as i32))
        .sum()
}

fn odd(sorted: &[f64]) -> Vec<(f64, f64)> {
    let (n, k) = (sorted.len(), sorted.len() / 2 + 1);
    (1..=n).map(|i| (sorted[i - 1], order_cdf(n, k, i) - order_cdf(n, k, i - 1))).collect()
}

fn even(sorted: &[f64]) -> Vec<(f64, f64)> {
    let (n, k) = (sorted.len(), sorted.len() / 2);
    let share = |count: usize| count as f64 / n as f64;
    let ways = ln_choose(n, k).exp();
    let power = |x: f64| x.powi(k as i32);
    let mut points = Vec::with_capacity(n * (n + 1) / 2);
    for i in 1..=n {
        let mut alone = order_cdf(n, k, i) - order_cdf(n, k, i - 1);
        let low = power(share(i)) - power(share(i - 1));
        for j in i + 1..=n {
            let high = power(share(n - j + 1)) - power(share(n - j));
            let both = ways * low * high;
            alone -= both;
            points.push(((sorted[i - 1] + sorted[j - 1]) / 2.0, both));
        }
        points.push((sorted[i - 1], alone.max(0.0)));
    }
    points
}

/// What one text adds to a mean over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Sum over its tokens.
    pub sum: f64,
    /// How many tokens.
    pub count: u64,
}

/// Mean over all tokens of `clusters`, with its 95 % interval by resampling whole clusters.
pub fn cluster_mean(clusters: &[Cluster]) -> Option<(f64, f64, f64)> {
    let mean = |clusters: &[Cluster]| {
        let count: u64 = clusters.iter().map(|c| c.count).sum();
        clusters.iter().map(|c| c.sum).sum::<f64>() / count as f64
    };
    let filled: Vec<Cluster> = clusters.iter().copied().filter(|c| c.count > 0).collect();
    let (low, high) = bootstrap_interval(&filled, 0.95, &mut Rng::new(filled.len() as u64), mean)?;
    Some((mean(&filled), low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), Some(2.5));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(quantile(&values, 0.9), Some(3.0 + 0.7));
        assert_eq!(median(&[]), None);
        assert!((spread_share(&values).unwrap() - (3.7 - 1.3) / 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_figure_that_is_not_a_number_is_no_figure() {
        assert_eq!(Measured::of(vec![1.0, f64::NAN]), None);
        assert_eq!(Measured::of(vec![]), None);
        let one = Measured::of(vec![2.0]).unwrap();
        assert_eq!((one.median, one.low, one.high, one.spread_share), (2.0, 2.0, 2.0, 0.0));
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        let mut rng = Rng::new(11);
        let hits = (0..200)
            .filter(|_| {
                let sample: Vec<f64> = (0..30).map(|_| 5.0 + rng.normal()).collect();
                let mean = |s: &[f64]| s.iter().sum::<f64>() / s.len() as f64;
                let (low, high) = bootstrap_interval(&sample, 0.95, &mut rng, mean).unwrap();
                low <= 5.0 && 5.0 <= high
            })
            .count();
        // 95 % of 200 is 190; the percentile bootstrap at n = 30 covers about 93 %, three standard errors are 11.
        assert!((175..=200).contains(&hits), "{hits} of 200");
    }

    #[test]
    fn the_exact_bootstrap_is_what_many_resamples_give() {
        let mut rng = Rng::new(3);
        for n in [1usize, 2, 5, 10, 11, 20] {
            let values: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
            let exact = MedianBootstrap::of(&values).unwrap();
            assert!((exact.points.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9, "{n}");
            let at = median(&values).unwrap() + 0.1;
            let draws = 20_000;
            let below = (0..draws)
                .filter(|_| {
                    let sample: Vec<f64> = (0..n).map(|_| values[rng.below(n)]).collect();
                    median(&sample).unwrap() <= at
                })
                .count();
            // Four standard errors of a share at 20,000 draws.
            let share = below as f64 / f64::from(draws);
            assert!((exact.at_most(at) - share).abs() < 4.0 * 0.5 / f64::from(draws).sqrt(), "{n}: {share}");
        }
        assert_eq!(MedianBootstrap::of(&[]), None);
        assert_eq!(MedianBootstrap::of(&[2.0]).unwrap().interval(0.95), (2.0, 2.0));
    }

    #[test]
    fn clusters_weigh_by_their_tokens() {
        let clusters = [Cluster { sum: 10.0, count: 10 }, Cluster { sum: 90.0, count: 30 }, Cluster::default()];
        let (mean, low, high) = cluster_mean(&clusters).unwrap();
        assert_eq!(mean, 2.5);
        assert!((low, high) == (1.0, 3.0));
        assert_eq!(cluster_mean(&[]), None);
    }
}
