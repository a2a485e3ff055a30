//! Log-probs of the model's own distribution: before bias, penalties, temperature and filters.
//!
//! Sums in f64, since a row of a large vocabulary adds up hundreds of thousands of terms.

use super::exp::sum_of_exp;
use std::cmp::Ordering;

/// ln of the sum of e^x over a row. NaN if the row holds one; -inf if every entry is -inf.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    if max == f32::NEG_INFINITY {
        return if row.iter().any(|x| x.is_nan()) { f64::NAN } else { f64::NEG_INFINITY };
    }
    let max = f64::from(max);
    max + sum_of_exp(row, max).ln()
}

/// Turns a row of logits into natural log-probs.
pub fn log_softmax(row: &mut [f32]) {
    let total = log_sum_exp(row);
    for x in row {
        *x = (f64::from(*x) - total) as f32;
    }
}

/// Higher first; among equals the lower id first.
pub(super) fn by_likelihood(a: (u32, f32), b: (u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The `count` highest entries of a row as (index, value), best first, among equals the lower index first.
pub(super) fn top_entries(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let count = count.min(row.len());
    if count == 0 {
        return Vec::new();
    }
    // Gathers what beats the worst kept so far and cuts back now and then: one pass, few comparisons.
    let room = count * 2 + 64;
    let mut kept: Vec<(u32, f32)> = Vec::with_capacity(room);
    let mut floor = f32::NEG_INFINITY;
    for (index, &value) in row.iter().enumerate() {
        if value > floor || kept.len() < count {
            kept.push((index as u32, value));
            if kept.len() == room {
                kept.select_nth_unstable_by(count - 1, |a, b| by_likelihood(*a, *b));
                kept.truncate(count);
                floor = kept[count - 1].1;
            }
        }
    }
    kept.sort_unstable_by(|a, b| by_likelihood(*a, *b));
    kept.truncate(count);
    kept
}

/// The log-prob of `token` and the `count` likeliest tokens with theirs, best first. Values below the range of f32 are
/// given as its lowest number, since JSON has no infinities.
pub fn top_logprobs(row: &[f32], token: u32, count: usize) -> (f32, Vec<(u32, f32)>) {
    let total = log_sum_exp(row);
    let log_prob = |x: f32| ((f64::from(x) - total) as f32).max(f32::MIN);
    let chosen = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (log_prob(chosen), top_entries(row, count).into_iter().map(|(id, x)| (id, log_prob(x))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_to_one_and_stays_finite_for_huge_logits() {
        let mut row: Vec<f32> = (0..50_000).map(|i| 1e4 + (i % 17) as f32).collect();
        log_softmax(&mut row);
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        // f32 log-probs near -13 are rounded to 1e-6 relative, so e^x is off by about as much.
        assert!((total - 1.0).abs() < 2e-6, "{total}");
    }

    #[test]
    fn nan_shows_and_all_masked_is_minus_infinity() {
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan());
        assert!(log_sum_exp(&[f32::NAN, f32::NAN]).is_nan());
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3]), f64::NEG_INFINITY);
    }

    #[test]
    fn top_entries_equal_a_full_sort() {
        for (seed, width) in [(1u32, 10usize), (2, 1000), (3, 5000)] {
            let row: Vec<f32> = (0..width as u32).map(|i| ((i * 7919 + seed) % 257) as f32).collect();
            let mut sorted: Vec<(u32, f32)> = row.iter().enumerate().map(|(i, &x)| (i as u32, x)).collect();
            sorted.sort_by(|a, b| by_likelihood(*a, *b));
            for count in [0, 1, 5, 300, width, width + 1] {
                assert_eq!(top_entries(&row, count), sorted[..count.min(width)], "width {width}, count {count}");
            }
        }
    }

    #[test]
    fn log_prob_of_chosen_token() {
        let (chosen, top) = top_logprobs(&[0.0, 1.0, 2.0], 0, 2);
        let total = (1f64 + 1f64.exp() + 2f64.exp()).ln();
        assert!((f64::from(chosen) + total).abs() < 1e-6);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1]);
    }
}
