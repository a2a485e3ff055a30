//! The evaluator measured by itself: comparisons whose answers are known.
//!
//! On rows of the reference: against themselves they must stand at no distance; against themselves at another temperature
//! at the distance a formula gives that shares no sum with the comparison; tokens drawn from them must cost on average as
//! much more under the other as the divergence says; and rows set against their neighbours must be found far apart. A
//! comparison that is shifted, cut short, turned round or blind fails one of the four, and then nothing it says counts.

use super::reduce::compare;
use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Rows looked at: the drawn tokens' mean needs some, and each costs the vocabulary several times.
pub const ROWS: usize = 64;

/// Log-probs are kept in f32: rounding of 1e-7 relative on values around 15 leaves divergences around 1e-12; a row that is
/// itself is not above a millionth.
const SAME_WITHIN: f64 = 1e-6;

/// Two f64 sums over one vocabulary in different orders, of f32 values.
const FORMULA_WITHIN: f64 = 1e-5;

/// The other temperature: exponents of the reference's probabilities.
const TEMPERED: f64 = 0.8;

/// One false alarm in 16,000 evaluations.
const DRAWN_Z: f64 = 4.0;

/// Neighbouring rows of a language model are further apart than this, nats: their tokens mostly differ.
const NEIGHBOURS_APART: f64 = 0.05;

/// What the comparisons with known answers gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Identity {
    /// Rows looked at.
    pub rows: u64,
    /// Largest divergence of a row from itself, nats.
    pub same_kld: f64,
    /// Largest difference between the divergence found and the formula's, as a share.
    pub formula_error: f64,
    /// How far drawn tokens' extra cost stands from the divergence, in standard deviations.
    pub drawn_z: f64,
    /// Mean divergence of rows from their neighbours, nats; absent with a single row.
    pub neighbours_kld: Option<f64>,
}

impl Identity {
    /// What is wrong with the evaluator; nothing if it measures what it should.
    pub fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.same_kld.is_nan() || self.same_kld > SAME_WITHIN {
            found.push(format!("evaluator: a row stands {:.1e} nats from itself", self.same_kld));
        }
        if self.formula_error.is_nan() || self.formula_error > FORMULA_WITHIN {
            found.push(format!(
                "evaluator: the divergence of rows at another temperature is {:.1e} off its formula",
                self.formula_error
            ));
        }
        if self.drawn_z.is_nan() || self.drawn_z.abs() > DRAWN_Z {
            found.push(format!("evaluator: drawn tokens do not bear the divergence out (z = {:.1})", self.drawn_z));
        }
        if self.neighbours_kld.is_some_and(|kld| kld.is_nan() || kld < NEIGHBOURS_APART) {
            found.push("evaluator: it cannot tell rows from their neighbours".into());
        }
        found
    }
}

/// Runs the comparisons on `rows` of log-probs.
pub fn check(rows: &[Vec<f32>], seed: u64) -> Identity {
    let mut rng = Rng::new(seed);
    let mut found =
        Identity { rows: rows.len() as u64, same_kld: 0.0, formula_error: 0.0, drawn_z: 0.0, neighbours_kld: None };
    let (mut drift, mut variance, mut apart) = (0.0, 0.0, Vec::new());
    for (i, row) in rows.iter().enumerate() {
        let kld = |other: &[f32], rng: &mut Rng| compare(row, other, &[], rng).map_or(f64::NAN, |result| result.kld);
        found.same_kld = found.same_kld.max(kld(row, &mut rng));
        let tempered = Tempered::of(row);
        let measured = kld(&tempered.row, &mut rng);
        let error = (measured - tempered.kld).abs() / tempered.kld.max(1e-3);
        found.formula_error = if error.is_nan() { f64::NAN } else { found.formula_error.max(error) };
        let token = draw(row, rng.uniform());
        drift += f64::from(row[token]) - f64::from(tempered.row[token]) - measured;
        variance += tempered.variance;
        if let Some(next) = rows.get(i + 1).filter(|next| next.len() == row.len()) {
            apart.push(kld(next, &mut rng));
        }
    }
    found.drawn_z = if variance > 0.0 { drift / variance.sqrt() } else { 0.0 };
    found.neighbours_kld = (!apart.is_empty()).then(|| apart.iter().sum::<f64>() / apart.len() as f64);
    found
}

/// A row with its probabilities raised to a power, and what a formula says of it.
struct Tempered {
    row: Vec<f32>,
    kld: f64,
    variance: f64,
}

impl Tempered {
    fn of(row: &[f32]) -> Self {
        // With q = p^t / Z: KL(p ‖ q) = (1 − t)·E[ln p] + ln Z, from two moments of ln p under p.
        let (mut mean, mut square, mut z) = (0.0, 0.0, 0.0);
        for lp in row.iter().map(|lp| f64::from(*lp)).filter(|lp| lp.is_finite()) {
            let p = lp.exp();
            mean += p * lp;
            square += p * lp * lp;
            z += (TEMPERED * lp).exp();
        }
        let ln_z = z.ln();
        let row = row.iter().map(|lp| (TEMPERED * f64::from(*lp) - ln_z) as f32).collect();
        let kld = (1.0 - TEMPERED) * mean + ln_z;
        Self { row, kld, variance: (1.0 - TEMPERED).powi(2) * (square - mean * mean).max(0.0) }
    }
}

fn draw(row: &[f32], uniform: f64) -> usize {
    let mut left = uniform;
    for (i, lp) in row.iter().enumerate() {
        left -= f64::from(*lp).exp();
        if left < 0.0 {
            return i;
        }
    }
    row.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<f32>> {
        let mut rng = Rng::new(4);
        (0..ROWS)
            .map(|_| {
                let logits: Vec<f64> = (0..200).map(|_| 2.0 * rng.normal()).collect();
                let sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
                logits.iter().map(|x| (x - sum) as f32).collect()
            })
            .collect()
    }

    #[test]
    fn this_evaluator_passes() {
        let found = check(&rows(), 1);
        assert_eq!(found.complaints(), Vec::<String>::new(), "{found:?}");
        // The formula's distance is one that counts: were it nothing, the comparison would not be tried.
        assert!(Tempered::of(&rows()[0]).kld > 0.01);
    }

    #[test]
    fn each_control_can_say_no() {
        let good = check(&rows(), 1);
        let complaints = |found: Identity| found.complaints().len();
        assert_eq!(complaints(Identity { same_kld: 1e-4, ..good }), 1);
        assert_eq!(complaints(Identity { formula_error: 0.1, ..good }), 1);
        assert_eq!(complaints(Identity { drawn_z: -9.0, ..good }), 1);
        assert_eq!(complaints(Identity { neighbours_kld: Some(0.0), ..good }), 1);
        assert_eq!(complaints(Identity { formula_error: f64::NAN, ..good }), 1);
    }

    #[test]
    fn rows_that_are_all_alike_show_an_evaluator_fed_with_one_row() {
        let same = vec![rows()[0].clone(); 10];
        assert!(check(&same, 1).complaints()[0].contains("neighbours"));
    }
}
