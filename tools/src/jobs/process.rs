//! Which process is whose: ids are reused, so a process is known by its id, its start time and the boot it runs in.

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

/// A process, so that it is not mistaken for a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id; also the id of its group, for a runner.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// Id of the boot.
    pub boot: String,
}

impl ProcessId {
    /// The live process `pid`; `None` if there is none.
    pub fn of(pid: i32) -> Option<Self> {
        let (state, started) = stat(pid)?;
        (state != 'Z' && state != 'X').then(|| Self { pid, started, boot: boot_id() })
    }

    /// This process.
    pub fn current() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Whether its id now names another process, so that its group must not be touched.
    fn is_replaced(&self) -> bool {
        self.boot != boot_id() || stat(self.pid).is_some_and(|(_, started)| started != self.started)
    }

    /// Sends `signal` to the group it leads. A group that is gone is no error.
    pub fn signal_group(&self, signal: Signal) {
        if self.is_replaced() {
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// State letter and start time of `/proc/<pid>/stat`; the command name may hold spaces and parentheses, so fields are
/// counted from the last one.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::ProcessId;

    #[test]
    fn a_process_is_alive_until_it_ends_and_is_not_its_successor() {
        let me = ProcessId::current().expect("this process runs");
        assert!(me.is_alive());
        let other = ProcessId { started: me.started + 1, ..me };
        assert!(!other.is_alive() && other.is_replaced());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let id = ProcessId::of(child.id() as i32).expect("it runs");
        child.kill().expect("it can be killed");
        while id.is_alive() {
            std::thread::yield_now();
        }
        child.wait().expect("it ended");
        assert!(!id.is_alive());
    }
}
