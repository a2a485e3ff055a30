//! Numbers as people read them.

use crate::ceiling::Bound;
use crate::limits::MemoryLevel;
use crate::quality::ConductState;
use crit_core::model::program::Precision;

/// What stands where there is no figure.
pub(super) const ABSENT: &str = "–";

/// Three significant digits: `1 240`, `182`, `41.3`, `7.52`.
pub(super) fn rate(value: f64) -> String {
    match value {
        v if v >= 999.5 => thousands((v / 10.0).round() as u64 * 10),
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    // A thin space does not break and is no decimal mark in any country.
    groups.join("\u{202f}")
}

pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 9.95 && percent != 0.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A divergence: four digits behind the point, or its size when smaller.
pub(super) fn kld(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 0.000_05 => format!("{v:.0e}"),
        v if v < 0.1 => format!("{v:.4}"),
        v => format!("{v:.3}"),
    }
}

pub(super) fn or_absent(value: Option<f64>, format: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| ABSENT.into(), format)
}

pub(super) fn bytes(value: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) if value.is_multiple_of(size) => format!("{} {unit}", value / size),
        Some((size, unit)) => format!("{:.1} {unit}", value as f64 / size as f64),
        None => format!("{value} B"),
    }
}

pub(super) fn gb_s(bytes_s: f64) -> String {
    rate(bytes_s / 1e9)
}

pub(super) fn bound(bound: Bound, level: Option<MemoryLevel>) -> String {
    match (bound, level) {
        (Bound::Arithmetic, _) => "bound by arithmetic".into(),
        (Bound::Memory, Some(level)) => format!("bound by reading {}", level.label()),
        (Bound::Memory, None) => "bound by reading".into(),
    }
}

pub(super) const fn conduct_word(state: ConductState) -> &'static str {
    match state {
        ConductState::Pass => "pass",
        ConductState::Fail => "FAIL",
        ConductState::NotMeasured => "not measured",
    }
}

pub(super) const fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
        Precision::F16 => "f16",
        Precision::Fp8 => "fp8",
        Precision::Int8 => "int8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_no_more() {
        let rates: Vec<String> = [12_345.6, 999.7, 182.4, 41.27, 7.519, 0.0].into_iter().map(rate).collect();
        assert_eq!(rates, ["12\u{202f}350", "1\u{202f}000", "182", "41.3", "7.52", "0.00"]);
        assert_eq!([0.0, 2.3e-7, 0.01234, 0.4567].map(kld), ["0", "2e-7", "0.0123", "0.457"]);
        assert_eq!([0.714, 0.02, 0.0].map(percent), ["71 %", "2.0 %", "0 %"]);
        assert_eq!([512, 32 << 20, 1_600_000].map(bytes), ["512 B", "32 MiB", "1.5 MiB"]);
    }
}
