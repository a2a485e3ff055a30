//! Dates for chat templates that ask for today's: `strftime` in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// `time` as `format` asks, with the directives of Python's `strftime` that templates use. An unknown directive is
/// left as it stands.
pub(super) fn strftime(time: SystemTime, format: &str) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    let (year, month, day) = civil(days);
    // 1 January 1970 was a Thursday.
    let weekday = DAYS[((days + 3) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        // "%-d" is the day without a leading zero.
        let (plain, directive) = if directive == Some('-') { (true, chars.next()) } else { (false, directive) };
        let two = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        match directive {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year as u64 % 100)),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two((hour + 11) % 12 + 1)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('j') => out.push_str(&format!("{:03}", days - days_from_civil(year, 1, 1) + 1)),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day counted from 1 January 1970 on.
fn civil(days: i64) -> (i64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (2..=12).take_while(|month| days_from_civil(year, *month, 1) <= days).count() as u64 + 1;
    (year, month, (days - days_from_civil(year, month, 1) + 1) as u64)
}

fn days_from_civil(year: i64, month: u64, day: u64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let past = year - 1;
    let leap_days = past / 4 - past / 100 + past / 400 - 477;
    let february = if leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let months: i64 = lengths.iter().take(month as usize - 1).sum();
    (year - 1970) * 365 + leap_days + months + day as i64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn known_dates() {
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        // Known answers from `date -u -d @N`.
        assert_eq!(at(951_782_399, "%d %b %Y %T"), "28 Feb 2000 23:59:59");
        assert_eq!(at(951_868_799, "%F %a"), "2000-02-29 Tue");
        assert_eq!(at(1_735_689_599, "%F %j %I %p"), "2024-12-31 366 11 PM");
        assert_eq!(at(4_107_542_400, "%-d %B %Y %% %Q"), "1 March 2100 % %Q");
    }
}
