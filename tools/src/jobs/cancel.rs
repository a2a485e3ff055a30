//! Ending a job.

use super::store::Job;
use super::{JobState, Store};
use crate::error::ToolError;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Time the group has between being asked and being made to end.
const GRACE: Duration = Duration::from_secs(2);

/// Ends job `id` and all its processes; returns it as it then stands. Ending a job that has ended changes nothing.
///
/// # Errors
/// There is no such job, or its state cannot be written.
pub fn cancel(store: &Store, id: &str) -> Result<Job, ToolError> {
    let job = store.load(id)?;
    if job.state.state.is_final() {
        return Ok(job);
    }
    store.finish(id, JobState::Cancelled, None)?;
    if let Some(runner) = job.runner() {
        runner.signal_group(Signal::TERM);
        let end = Instant::now() + GRACE;
        while runner.is_alive() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        runner.signal_group(Signal::KILL);
    }
    store.load(id)
}
