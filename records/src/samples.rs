//! Raw samples, and the one way to sum them up.
//!
//! The evaluator and `verify` use the same exact decimal arithmetic, so a recorded summary either recomputes digit for digit or
//! it was not made from these samples.

use crate::canonical;
use crate::format::{Samples, Series, Statistic, SummaryRow};
use crate::quantity::Quantity;

/// The schema of a samples attachment.
const SCHEMA: &str = "crit.samples/v1";

impl Samples {
    /// Samples of `series`.
    pub fn new(series: Vec<Series>) -> Self {
        Self { schema: SCHEMA.into(), series }
    }

    /// The canonical bytes to attach, or why there are none.
    pub fn to_bytes(&self) -> Result<Vec<u8>, canonical::CanonicalError> {
        let error = |e: serde_json::Error| canonical::CanonicalError { what: e.to_string(), place: "/".into() };
        canonical::to_bytes(&serde_json::to_value(self).map_err(error)?)
    }

    /// Reads an attachment, or says why it cannot.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let value = canonical::from_bytes(bytes).map_err(|e| e.to_string())?;
        let samples: Self = serde_json::from_value(value).map_err(|e| e.to_string())?;
        if samples.schema != SCHEMA {
            return Err(format!("`{}` is not {SCHEMA}", samples.schema));
        }
        Ok(samples)
    }

    /// The row that sums up `series` by `statistic` with `digits` decimals, or why there is none.
    pub fn summarise(&self, series: &str, statistic: Statistic, digits: u8) -> Result<SummaryRow, String> {
        let mut found = self.series.iter().filter(|s| s.name == series);
        let (Some(one), None) = (found.next(), found.next()) else {
            return Err(format!("the samples do not have exactly one series `{series}`"));
        };
        let value = compute(&one.values, statistic, digits).map_err(|e| format!("series `{series}`: {e}"))?;
        Ok(SummaryRow { series: series.into(), statistic, value })
    }
}

fn compute(values: &[Quantity], statistic: Statistic, digits: u8) -> Result<Quantity, String> {
    let text = |e: crate::quantity::QuantityError| e.to_string();
    if statistic == Statistic::Count {
        return Quantity::scaled(values.len() as i128, 0, "samples").map_err(text);
    }
    let unit = values.first().ok_or("no samples")?.unit();
    if values.iter().any(|v| v.unit() != unit) {
        return Err("its samples have several units".into());
    }
    let finest = values.iter().map(Quantity::digits).max().unwrap_or(0);
    let mut scaled = values
        .iter()
        .map(|v| rescale(v.scaled_value(), 1, v.digits(), finest))
        .collect::<Option<Vec<i128>>>()
        .ok_or(OVERFLOW)?;
    scaled.sort_unstable();
    let n = scaled.len();
    let sum = |items: &[i128]| items.iter().try_fold(0i128, |sum, v| sum.checked_add(*v)).ok_or(OVERFLOW);
    let (numerator, divisor) = match statistic {
        Statistic::Min => (scaled[0], 1),
        Statistic::Max => (scaled[n - 1], 1),
        Statistic::Sum => (sum(&scaled)?, 1),
        Statistic::Mean => (sum(&scaled)?, n as i128),
        Statistic::Median if n.is_multiple_of(2) => (sum(&scaled[n / 2 - 1..=n / 2])?, 2),
        Statistic::Median => (scaled[n / 2], 1),
        Statistic::Count => (n as i128, 1),
    };
    let value = rescale(numerator, divisor, finest, digits).ok_or(OVERFLOW)?;
    Quantity::scaled(value, digits, unit).map_err(text)
}

const OVERFLOW: &str = "its numbers are too large to sum";

/// `numerator / divisor` from `from` decimals to `to` decimals, halves away from zero.
fn rescale(numerator: i128, divisor: i128, from: u8, to: u8) -> Option<i128> {
    let up = 10i128.checked_pow(to.saturating_sub(from).into())?;
    let down = 10i128.checked_pow(from.saturating_sub(to).into())?.checked_mul(divisor)?;
    let exact = numerator.checked_mul(up)?;
    let half = down / 2 * exact.signum();
    // An odd divisor has no exact half, so adding its lower half and truncating rounds to nearest there too.
    exact.checked_add(half)?.checked_div(down)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(values: &[&str]) -> Samples {
        let values = values.iter().map(|v| v.parse().unwrap()).collect();
        Samples::new(vec![Series { name: "s".into(), values }])
    }

    fn text(samples: &Samples, statistic: Statistic, digits: u8) -> String {
        samples.summarise("s", statistic, digits).unwrap().value.to_string()
    }

    #[test]
    fn known_answers() {
        let samples = series(&["3.0 ms", "1.25 ms", "2 ms", "-1 ms"]);
        assert_eq!(text(&samples, Statistic::Count, 0), "4 samples");
        assert_eq!(text(&samples, Statistic::Min, 1), "-1.0 ms");
        assert_eq!(text(&samples, Statistic::Max, 0), "3 ms");
        assert_eq!(text(&samples, Statistic::Sum, 2), "5.25 ms");
        assert_eq!(text(&samples, Statistic::Mean, 4), "1.3125 ms");
        assert_eq!(text(&samples, Statistic::Mean, 3), "1.313 ms");
        assert_eq!(text(&samples, Statistic::Median, 2), "1.63 ms");
        assert!(samples.summarise("t", Statistic::Mean, 1).is_err());
        assert!(series(&["1 s", "1 ms"]).summarise("s", Statistic::Mean, 1).is_err());
        assert!(series(&[]).summarise("s", Statistic::Median, 1).is_err());
        assert_eq!(Samples::from_bytes(&samples.to_bytes().unwrap()).unwrap(), samples);
    }

    proptest! {
        #[test]
        fn mean_is_the_nearest_decimal(values in prop::collection::vec(-1_000_000i64..1_000_000, 1..40), digits in 0u8..6) {
            let samples = Samples::new(vec![Series {
                name: "s".into(),
                values: values.iter().map(|v| Quantity::scaled((*v).into(), 3, "u").unwrap()).collect(),
            }]);
            let mean = samples.summarise("s", Statistic::Mean, digits).unwrap().value.value();
            let exact = values.iter().sum::<i64>() as f64 / 1e3 / values.len() as f64;
            // Half of the last digit, plus float error of `exact` itself (1e-16 relative of at most 1e3).
            prop_assert!((mean - exact).abs() <= 0.5 * 10f64.powi(-i32::from(digits)) + 1e-9);
        }
    }
}
