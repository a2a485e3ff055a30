//! The machine's own floor: the largest effect it was seen to show between an engine and itself.
//!
//! Each A/A session adds to a file in the workspace's cache. Sessions of another kind of work, of another kernel or
//! older than a week no longer count; of the others the newest twenty do.

use crate::context::Context;
use crate::error::ToolError;
use crit_core::error::ErrorKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Sessions that count.
const COUNTED: usize = 20;
/// Age from which a session no longer counts: a machine changes with what else lives on it.
const WEEK_S: u64 = 7 * 24 * 3600;

/// An A/A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Session {
    work: String,
    kernel: String,
    at_s: u64,
    effect: f64,
}

/// Adds the median effect of an A/A session of `work`; returns the floor with it.
///
/// # Errors
/// The cache cannot be written.
pub fn add(context: &Context, work: &str, effect: f64) -> Result<f64, ToolError> {
    let (now_s, kernel) = (now_s(), kernel());
    let mut sessions = read(context);
    sessions.push(Session { work: work.into(), kernel: kernel.clone(), at_s: now_s, effect: effect.abs() });
    sessions.retain(|session| now_s.saturating_sub(session.at_s) < WEEK_S);
    write(context, &sessions)?;
    Ok(floor(&sessions, work, &kernel))
}

/// The floor of `work` and how many sessions it rests on.
pub fn known(context: &Context, work: &str) -> (f64, usize) {
    let (now_s, kernel) = (now_s(), kernel());
    let mut sessions = read(context);
    sessions.retain(|session| now_s.saturating_sub(session.at_s) < WEEK_S);
    let count = sessions.iter().filter(|session| session.work == work && session.kernel == kernel).count();
    (floor(&sessions, work, &kernel), count.min(COUNTED))
}

fn floor(sessions: &[Session], work: &str, kernel: &str) -> f64 {
    let same = sessions.iter().rev().filter(|session| session.work == work && session.kernel == kernel);
    same.take(COUNTED).map(|session| session.effect).fold(0.0, f64::max)
}

fn read(context: &Context) -> Vec<Session> {
    let bytes = path(context).and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn write(context: &Context, sessions: &[Session]) -> Result<(), ToolError> {
    let Some(path) = path(context) else { return Ok(()) };
    context.workspace()?.prepare()?;
    let text = serde_json::to_vec(sessions)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the noise floor: {error}")))?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|error| ToolError::io("write", &path, &error))
}

fn path(context: &Context) -> Option<PathBuf> {
    Some(context.try_workspace()?.cache().join("noise.json"))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(work: &str, kernel: &str, effect: f64) -> Session {
        Session { work: work.into(), kernel: kernel.into(), at_s: 0, effect }
    }

    #[test]
    fn only_the_newest_of_the_same_work_and_kernel_count() {
        let mut sessions = vec![session("a", "6", 0.9)];
        sessions.extend((0..COUNTED).map(|i| session("a", "6", 0.001 * i as f64)));
        sessions.extend([session("b", "6", 0.5), session("a", "5", 0.5)]);
        assert!((floor(&sessions, "a", "6") - 0.019).abs() < 1e-12);
        assert_eq!(floor(&sessions, "b", "6"), 0.5);
        assert_eq!(floor(&[], "a", "6"), 0.0);
    }
}
