//! Following a job: its state, and its log by cursor.

use super::store::Job;
use super::{State, Store};
use crate::context::Context;
use crate::error::ToolError;
use crate::text::clean;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two looks at a job.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most log bytes of one answer.
const LOG_BYTES: usize = 6_000;
/// Most characters of one log line.
const LINE_CHARS: usize = 300;

/// Waits until the job's state is final, or, with `any_change`, until its state or phase differs from `seen`; at most
/// `wait`. Ends early when the caller no longer waits.
///
/// # Errors
/// The job cannot be read.
pub fn wait(
    context: &Context,
    store: &Store,
    id: &str,
    wait: Duration,
    seen: Option<&State>,
) -> Result<Job, ToolError> {
    let end = Instant::now() + wait;
    loop {
        let job = store.load(id)?;
        let changed = seen.is_some_and(|seen| seen.state != job.state.state || seen.phase != job.state.phase);
        let left = end.saturating_duration_since(Instant::now());
        if job.state.state.is_final() || changed || left.is_zero() || context.is_cancelled() {
            return Ok(job);
        }
        std::thread::sleep(LOOK_EVERY.min(left));
    }
}

/// At most `lines` lines of the log from byte `cursor` on, cleaned, and the cursor after them. A line without its end
/// is left for later.
pub fn log(path: &Path, cursor: u64, lines: usize) -> (Vec<String>, u64) {
    let mut bytes = vec![0; LOG_BYTES];
    let Ok(mut file) = File::open(path) else { return (Vec::new(), cursor) };
    // A cursor past the end comes from another job; start over rather than say nothing for ever.
    let start = if file.metadata().is_ok_and(|meta| cursor > meta.len()) { 0 } else { cursor };
    let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.by_ref().take(LOG_BYTES as u64).read(&mut bytes));
    bytes.truncate(read.unwrap_or(0));
    let mut found = Vec::new();
    let mut used = 0;
    while found.len() < lines {
        let rest = &bytes[used..];
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            // A line longer than an answer is given in parts.
            if used == 0 && rest.len() == LOG_BYTES {
                found.push(clean(&String::from_utf8_lossy(rest), LINE_CHARS));
                used = rest.len();
            }
            break;
        };
        found.push(clean(&String::from_utf8_lossy(&rest[..length]), LINE_CHARS));
        used += length + 1;
    }
    (found, start + used as u64)
}

/// The last `lines` lines of the log, cleaned.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |meta| meta.len());
    let mut bytes = Vec::new();
    let start = length.saturating_sub(LOG_BYTES as u64);
    let _ = file.seek(SeekFrom::Start(start)).and_then(|_| file.take(LOG_BYTES as u64).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| clean(line, LINE_CHARS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_walks_the_whole_log_in_bounded_steps() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let all: Vec<String> = (0..5000).map(|i| format!("line {i} {}", "x".repeat(i % 90))).collect();
        std::fs::write(&path, all.join("\n") + "\n" + "unfinished").expect("written");
        let mut cursor = 0;
        let mut seen = Vec::new();
        loop {
            let (lines, next) = log(&path, cursor, 40);
            assert!(lines.len() <= 40 && next - cursor <= LOG_BYTES as u64);
            if lines.is_empty() {
                break;
            }
            seen.extend(lines);
            cursor = next;
        }
        assert_eq!(seen, all);
        assert_eq!(tail(&path, 2), [all[4999].clone(), "unfinished".to_string()]);
    }

    #[test]
    fn an_endless_line_does_not_stop_the_cursor() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        std::fs::write(&path, "y".repeat(20_000) + "\nend\n").expect("written");
        let mut cursor = 0;
        let mut last = String::new();
        for _ in 0..20 {
            let (lines, next) = log(&path, cursor, 40);
            last = lines.last().cloned().unwrap_or(last);
            cursor = next;
        }
        assert_eq!(last, "end");
    }
}
