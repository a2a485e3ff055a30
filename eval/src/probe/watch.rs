//! Watches who used the processors while something was measured.

use std::time::Instant;

/// Time the hypervisor took away above this share makes a measurement unstable.
const STEAL_LIMIT: f64 = 0.01;

/// Time others used the processors above this share makes a measurement unstable.
const FOREIGN_LIMIT: f64 = 0.05;

/// Kernel ticks a second, the unit of `/proc`: 100 on every Linux this runs on (`USER_HZ`).
const TICKS_S: f64 = 100.0;

/// Counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: f64,
    steal: f64,
    own: f64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat, &own)
    }

    fn parse(stat: &str, own: &str) -> Option<Self> {
        let all: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
        // After the name in parentheses, which may hold spaces: state is field 3, utime 14, stime 15, and those of
        // waited-for children 16 and 17.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own = fields.get(11..15)?.iter().filter_map(|w| w.parse::<f64>().ok()).sum();
        let at = |i: usize| all.get(i).copied().unwrap_or(0.0);
        Some(Self { busy: at(0) + at(1) + at(2) + at(5) + at(6), steal: at(7), own })
    }
}

/// A watch that was started.
#[derive(Debug)]
pub struct Watch {
    at: Option<Ticks>,
    start: Instant,
}

impl Watch {
    /// Starts watching.
    pub fn start() -> Self {
        Self { at: Ticks::now(), start: Instant::now() }
    }

    /// Ends watching.
    pub fn finish(self) -> Watched {
        let cores = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let capacity = self.start.elapsed().as_secs_f64() * TICKS_S * cores;
        let now = self.at.zip(Ticks::now());
        let share = |ticks: f64| if capacity > 0.0 { (ticks / capacity).clamp(0.0, 1.0) } else { 0.0 };
        Watched {
            steal_share: now.map(|(then, now)| share(now.steal - then.steal)),
            foreign_share: now.map(|(then, now)| share((now.busy - then.busy) - (now.own - then.own))),
        }
    }
}

/// What was seen, as shares of all processors' time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watched {
    /// Time the hypervisor took away.
    pub steal_share: Option<f64>,
    /// Time used by other processes.
    pub foreign_share: Option<f64>,
}

impl Watched {
    /// Why the machine was not steady; nothing if it was, or if the kernel does not tell.
    pub fn complaints(&self) -> Vec<String> {
        let complain = |share: Option<f64>, limit: f64, what: &str| {
            share.filter(|share| *share > limit).map(|share| format!("{what} {:.0} % of the processors", share * 100.0))
        };
        let steal = complain(self.steal_share, STEAL_LIMIT, "the hypervisor took away");
        steal.into_iter().chain(complain(self.foreign_share, FOREIGN_LIMIT, "other processes used")).collect()
    }

    /// The same for a measurement in which other processes are part of what is measured: only what was taken away
    /// counts.
    pub fn steal_complaints(&self) -> Vec<String> {
        Self { foreign_share: None, ..*self }.complaints()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_everyone_and_of_this_process() {
        let stat = "cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 2 3\n";
        let own = "42 (a name) R 1 1 1 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0";
        let ticks = Ticks::parse(stat, own).unwrap();
        assert_eq!(ticks, Ticks { busy: 73.0, steal: 8.0, own: 50.0 });
        assert_eq!(Ticks::parse("", own), None);
    }

    #[test]
    fn complaints_name_the_share() {
        let watched = Watched { steal_share: Some(0.03), foreign_share: Some(0.5) };
        assert_eq!(watched.complaints().len(), 2);
        assert!(watched.complaints()[0].contains("3 %"));
        assert_eq!(watched.steal_complaints().len(), 1);
        assert!(Watched { steal_share: Some(0.0), foreign_share: Some(0.01) }.complaints().is_empty());
        assert!(Watched { steal_share: None, foreign_share: None }.complaints().is_empty());
    }

    #[test]
    fn watching_nothing_sees_this_process_as_no_stranger() {
        let watched = Watch::start().finish();
        assert!(watched.steal_share.is_some());
    }
}
