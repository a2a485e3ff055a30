//! Measured values as text: a decimal number with fixed digits, a space and a unit.
//!
//! Records hold no floats, because two writers need not print one float alike and a reader may round it. A [`Quantity`] has
//! exactly one text form, compares exactly, and carries its unit with it: `"71.250 tok/s"`, `"1830000 ns"`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// More decimal digits than any measurement carries; keeps the scaled integer far from overflow.
const MAX_DIGITS: u8 = 18;
/// The longest number text accepted, sign and point included.
const MAX_NUMBER_LENGTH: usize = 36;

/// Why a value or a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// NaN and infinity are statuses of a measurement, not values.
    #[error("{0} is not finite; record a status instead of a number")]
    NotFinite(String),
    /// The text does not have the form `12.345 unit`.
    #[error("`{0}` is not a decimal number, one space and a unit")]
    Malformed(String),
    /// The unit is another one than the reader needs.
    #[error("`{text}` is not in {wanted}")]
    OtherUnit {
        /// The text read.
        text: String,
        /// The unit needed.
        wanted: String,
    },
    /// The number does not fit.
    #[error("{0} is too large to record")]
    TooLarge(String),
}

/// A decimal number with fixed digits and a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quantity {
    scaled: i128,
    digits: u8,
    unit: String,
}

impl Quantity {
    /// `value` rounded to `digits` decimals, in `unit`.
    pub fn of(value: f64, digits: u8, unit: &str) -> Result<Self, QuantityError> {
        if !value.is_finite() {
            return Err(QuantityError::NotFinite(value.to_string()));
        }
        if value.abs() >= 1e15 || digits > MAX_DIGITS {
            return Err(QuantityError::TooLarge(format!("{value} with {digits} digits")));
        }
        let text = format!("{value:.*}", usize::from(digits));
        let text = if text.trim_matches(['-', '0', '.']).is_empty() { text.trim_start_matches('-') } else { &text };
        format!("{text} {unit}").parse()
    }

    /// A whole number of `unit`.
    pub fn whole(value: i64, unit: &str) -> Result<Self, QuantityError> {
        Self { scaled: value.into(), digits: 0, unit: unit.into() }.checked()
    }

    /// The exact value `scaled · 10^-digits` in `unit`.
    pub fn scaled(scaled: i128, digits: u8, unit: &str) -> Result<Self, QuantityError> {
        Self { scaled, digits, unit: unit.into() }.checked()
    }

    /// The value as a float, for computing and showing.
    pub fn value(&self) -> f64 {
        let text = self.number();
        text.parse().unwrap_or(f64::NAN)
    }

    /// The value times `10^digits()`, exact.
    pub const fn scaled_value(&self) -> i128 {
        self.scaled
    }

    /// How many decimals it has.
    pub const fn digits(&self) -> u8 {
        self.digits
    }

    /// The unit.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The value as a float if the unit is `unit`.
    pub fn value_in(&self, unit: &str) -> Result<f64, QuantityError> {
        if self.unit != unit {
            return Err(QuantityError::OtherUnit { text: self.to_string(), wanted: unit.into() });
        }
        Ok(self.value())
    }

    fn checked(self) -> Result<Self, QuantityError> {
        // The text form is the definition, so what it cannot express does not exist.
        self.to_string().parse()
    }

    fn number(&self) -> String {
        let digits = usize::from(self.digits);
        let all = format!("{:0>width$}", self.scaled.unsigned_abs(), width = digits + 1);
        let (whole, fraction) = all.split_at(all.len() - digits);
        let sign = if self.scaled < 0 { "-" } else { "" };
        let point = if digits > 0 { "." } else { "" };
        format!("{sign}{whole}{point}{fraction}")
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number(), self.unit)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(text.into());
        let (number, unit) = text.split_once(' ').ok_or_else(malformed)?;
        let unit_ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'/' | b'%' | b'.' | b'-');
        if unit.is_empty() || !unit.bytes().all(unit_ok) {
            return Err(malformed());
        }
        if number.len() > MAX_NUMBER_LENGTH {
            return Err(QuantityError::TooLarge(number.into()));
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = u8::try_from(fraction.len()).ok().filter(|d| *d <= MAX_DIGITS).ok_or_else(malformed)?;
        let scaled = format!("{whole}{fraction}").parse().map_err(|_| malformed())?;
        let quantity = Self { scaled, digits, unit: unit.into() };
        // Refuses "+1", "01", "-0" and "1." as well: each value has one text.
        if quantity.to_string() == text { Ok(quantity) } else { Err(malformed()) }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "A decimal number, a space and a unit: \"71.250 tok/s\""})
    }
}

/// A duration in whole nanoseconds. Durations beyond 292 years are clamped to it.
pub fn ns(duration: Duration) -> Quantity {
    let nanoseconds = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Quantity { scaled: nanoseconds.into(), digits: 0, unit: "ns".into() }
}

/// A share or a relative change in parts per million: `ppm(0.8125)` is 812 500.
pub fn ppm(share: f64) -> Result<i64, QuantityError> {
    let parts = (share * 1e6).round();
    if !parts.is_finite() {
        return Err(QuantityError::NotFinite(share.to_string()));
    }
    if parts.abs() > crate::canonical::MAX_INTEGER as f64 {
        return Err(QuantityError::TooLarge(share.to_string()));
    }
    Ok(parts as i64)
}

/// The share that `ppm` parts per million are.
pub fn share(ppm: i64) -> f64 {
    ppm as f64 / 1e6
}

/// A seed as text; seeds use all 64 bits, more than a JSON number keeps.
pub fn seed_text(seed: u64) -> String {
    format!("{seed:#018x}")
}

/// The seed that [`seed_text`] wrote.
pub fn parse_seed(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().filter(|seed| seed_text(*seed) == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_text_for_each_value() {
        assert_eq!(Quantity::of(71.25, 3, "tok/s").unwrap().to_string(), "71.250 tok/s");
        assert_eq!(Quantity::of(-0.0004, 3, "nat").unwrap().to_string(), "0.000 nat");
        assert_eq!(Quantity::of(-0.05, 2, "%").unwrap().to_string(), "-0.05 %");
        assert_eq!(ns(Duration::from_micros(1830)).to_string(), "1830000 ns");
        for text in [
            "1", "1 ", " s", "01 s", "+1 s", "-0 s", "1. s", ".5 s", "1e3 s", "1 s ", "1  s", "NaN s", "1,5 s",
            "-0.0 s",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
        assert!(Quantity::of(f64::NAN, 3, "s").is_err());
        assert!(Quantity::of(1e300, 3, "s").is_err());
        assert!(Quantity::of(1.0, 2, "tok s").is_err());
        assert!("1 s".parse::<Quantity>().unwrap().value_in("ms").is_err());
    }

    #[test]
    fn shares_and_seeds() {
        assert_eq!(ppm(0.8125).unwrap(), 812_500);
        assert_eq!(share(812_500), 0.8125);
        assert!(ppm(f64::INFINITY).is_err());
        assert_eq!(parse_seed(&seed_text(u64::MAX)), Some(u64::MAX));
        assert_eq!(parse_seed("0x1"), None);
    }

    proptest! {
        #[test]
        fn text_round_trips(scaled in -1_000_000_000_000_000i64..1_000_000_000_000_000, digits in 0u8..10) {
            let quantity = Quantity::scaled(scaled.into(), digits, "u").unwrap();
            prop_assert_eq!(quantity.to_string().parse::<Quantity>().unwrap(), quantity);
        }

        #[test]
        fn rounding_is_within_half_a_digit(value in -1e9f64..1e9, digits in 0u8..6) {
            let quantity = Quantity::of(value, digits, "u").unwrap();
            let half = 0.5 * 10f64.powi(-i32::from(digits));
            // Half a unit of the last digit, plus the spacing of floats near 1e9 for reading it back.
            prop_assert!((quantity.value() - value).abs() <= half * (1.0 + 1e-6) + 2e-7);
        }
    }
}
