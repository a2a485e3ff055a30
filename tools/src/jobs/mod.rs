//! Detached jobs: work that outlives the call that asked for it.
//!
//! A job is a folder `.crit/jobs/<id>/`:
//! - `request.json`: tool, arguments, key and deadline; written once;
//! - `state.json`: where it stands; replaced by rename, never edited, and final once it says done, failed or cancelled;
//! - `runner.json`: process id and start time of its runner;
//! - `log`: what the runner and its children printed;
//! - `result.json`: the tool's output, written before the state says done.
//!
//! The runner is `crit job-run`, a session of its own with no standard input, so that neither a client's signals nor
//! its hang-up reach it, and so that it and all its children can be ended together. Whoever reads a job whose runner
//! is gone writes the failure down: no job stays "running" for ever. Any process may follow or cancel any job; the
//! folder is all there is.

pub mod call;
pub mod cancel;
pub mod lock;
pub mod process;
pub mod runner;
pub mod start;
pub mod store;
pub mod watch;

use crate::error::ToolError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use store::Store;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for its runner to start or for the machine to be free.
    Queued,
    /// It works.
    Running,
    /// It ended with a result.
    Done,
    /// It ended with an error.
    Failed,
    /// It was ended by `job_cancel`.
    Cancelled,
}

impl JobState {
    /// Whether it will not change any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// The job that measures on this machine now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Holder {
    /// Its id.
    pub job_id: String,
    /// What it does.
    pub what: String,
    /// The workspace it belongs to.
    pub workspace: String,
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units there are.
    pub total: u64,
}

/// What was asked. Written once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Name of the tool.
    pub tool: String,
    /// Its arguments, with defaults filled in.
    pub arguments: Value,
    /// Digest of tool, arguments and inputs: equal keys ask for the same work.
    pub key: String,
    /// Who asked.
    pub client: String,
    /// When, in milliseconds since 1970.
    pub created_ms: u64,
    /// Longest run in seconds.
    pub deadline_s: u64,
}

/// Where a job stands, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The state.
    pub state: JobState,
    /// What it does just now.
    pub phase: String,
    /// How far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Whom it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Holder>,
    /// When the phase began, in milliseconds since 1970.
    pub phase_ms: u64,
    /// When the runner last said it lives, in milliseconds since 1970.
    pub heartbeat_ms: u64,
    /// When it ended, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}

impl State {
    /// A job that has just been asked for.
    pub fn queued() -> Self {
        Self {
            state: JobState::Queued,
            phase: "start".into(),
            progress: None,
            waiting_for: None,
            phase_ms: now_ms(),
            heartbeat_ms: now_ms(),
            ended_ms: None,
            error: None,
        }
    }

    /// Seconds until the phase ends at the pace so far, once a tenth of it is done.
    pub fn eta_s(&self) -> Option<u64> {
        let progress = self.progress.filter(|p| p.done > 0 && p.done * 10 >= p.total && p.done < p.total)?;
        let elapsed_ms = now_ms().saturating_sub(self.phase_ms);
        Some(elapsed_ms.saturating_mul(progress.total - progress.done) / progress.done / 1000)
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
