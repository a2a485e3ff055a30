//! Processor time of an engine's process and all it started: what it still computes after it has answered.

use std::collections::HashMap;

/// Kernel ticks a second, the unit of `/proc`: 100 on every Linux this runs on (`USER_HZ`).
const TICKS_S: f64 = 100.0;

/// Counts the processor time of an engine.
pub trait Census {
    /// Seconds of processor time so far; `None` where it cannot be had.
    fn cpu_s(&mut self) -> Option<f64>;
}

/// The tree of processes under one.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTree(pub u32);

impl Census for ProcessTree {
    fn cpu_s(&mut self) -> Option<f64> {
        let mut parents: HashMap<u32, (u32, f64)> = HashMap::new();
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process may end between the listing and the reading.
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            if let Some(found) = parse(&stat) {
                parents.insert(pid, found);
            }
        }
        parents.get(&self.0)?;
        let within = |mut pid: u32| {
            // A chain of parents is short; a loop cannot be, but must not hang an evaluation.
            (0..64).any(|_| {
                let here = pid == self.0;
                pid = parents.get(&pid).map_or(0, |(parent, _)| *parent);
                here
            })
        };
        Some(parents.iter().filter(|(pid, _)| within(**pid)).map(|(_, (_, cpu_s))| cpu_s).sum())
    }
}

/// Parent and processor seconds of a `stat` line, its ended children included.
fn parse(stat: &str) -> Option<(u32, f64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11..15)?.iter().filter_map(|word| word.parse::<f64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks / TICKS_S))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_tells_parent_and_time() {
        assert_eq!(parse("42 (a ) name) R 7 1 1 0 -1 0 0 0 0 0 100 50 25 25 20 0 1 0"), Some((7, 2.0)));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_has_used_some_and_no_process_none() {
        let own = ProcessTree(std::process::id()).cpu_s();
        assert!(own.is_some_and(|s| s >= 0.0));
        assert_eq!(ProcessTree(u32::MAX - 1).cpu_s(), None);
    }
}
