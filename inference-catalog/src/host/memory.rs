//! How much memory an engine may take.

use crit_core::runtime::EngineError;
use std::fs;
use std::path::Path;

/// Names the most bytes an engine may take, below what is free: to leave room for others on a shared machine.
pub const BUDGET_ENV: &str = "CRIT_MEMORY_BYTES";

/// Bytes this process may still take: what the system has available, what its control group leaves, or what
/// [`BUDGET_ENV`] allows, whichever is least. `None` where none of them says.
pub fn free_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let group = group_left(Path::new("/sys/fs/cgroup"));
    let budget = std::env::var(BUDGET_ENV).ok().and_then(|text| text.trim().parse().ok());
    [system, group, budget].into_iter().flatten().min()
}

/// Fails if `needed_bytes` are more than are free.
pub(super) fn require(what: &str, needed_bytes: u64, free_bytes: Option<u64>) -> Result<(), EngineError> {
    match free_bytes {
        Some(free_bytes) if free_bytes < needed_bytes => {
            Err(EngineError::Memory { what: what.into(), needed_bytes, free_bytes })
        }
        _ => Ok(()),
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Limit less use of the control group (version 2) mounted at `home`, if it has a limit. Page cache counts as use there,
/// but gives way, so it is added back.
fn group_left(home: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(home.join(file)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(home.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_read_from_system_and_group() {
        assert_eq!(available("MemTotal:  10 kB\nMemAvailable:   7 kB\n"), Some(7168));
        assert_eq!(available("MemTotal: 10 kB\n"), None);
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "600\n");
        assert_eq!(group_left(home.path()), None, "a group without a limit");
        write("memory.max", "1000\n");
        write("memory.stat", "anon 300\ninactive_file 250\n");
        assert_eq!(group_left(home.path()), Some(650));
    }

    #[test]
    fn too_much_says_needed_and_free() {
        assert!(require("model", 10, Some(10)).is_ok() && require("model", 10, None).is_ok());
        let error = require("the model", 10, Some(9)).unwrap_err().to_string();
        assert_eq!(error, "the model needs 10 bytes and 9 are free");
    }
}
