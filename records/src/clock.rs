//! Time as records carry it: a UTC claim for people, and a monotonic reading with the boot it belongs to for durations.

use crate::quantity::{Quantity, ns};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 of the system clock.
pub fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The monotonic clock of this boot.
pub fn monotonic() -> Quantity {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    ns(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32))
}

/// An id of the current boot, or `unknown` where the system gives none.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| "unknown".into(), |id| id.trim().into())
}

/// `secs` since 1970 as `2026-11-30T12:00:00Z`.
pub fn utc_text(secs: u64) -> String {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The seconds that [`utc_text`] wrote.
pub fn parse_utc(text: &str) -> Option<u64> {
    let field = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
    let (hour, minute, second) = (field(11, 13)?, field(14, 16)?, field(17, 19)?);
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let secs = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    // Writing it again checks separators and ranges at once.
    (utc_text(secs) == text).then_some(secs)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_before_year(year: u64) -> u64 {
    let y = year - 1;
    // Days from the year 1 to `year`, less those to 1970.
    y * 365 + y / 4 - y / 100 + y / 400 - 719_162
}

fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    days_before_year(year) + (1..month).map(|m| month_days(year, m)).sum::<u64>() + day.saturating_sub(1)
}

fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before_year(year);
    let mut month = 1;
    while rest >= month_days(year, month) {
        rest -= month_days(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_and_round_trip() {
        assert_eq!(utc_text(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc_text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc_text(4_107_542_400), "2100-03-01T00:00:00Z");
        for secs in (0..5_000_000_000u64).step_by(86_399 * 17) {
            assert_eq!(parse_utc(&utc_text(secs)), Some(secs));
        }
        for text in [
            "",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T24:00:00Z",
            "1969-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
