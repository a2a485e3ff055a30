//! `job_cancel`: end a job.

use crate::context::Context;
use crate::error::ToolError;
use crate::jobs::{JobState, Store, cancel};
use crate::next::Next;
use crate::tool::{Effect, Runs, Tool};
use serde::{Deserialize, Serialize};

/// The tool.
pub struct JobCancel;

/// Arguments.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The job, as given when it was started.
    pub job_id: String,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The job.
    pub job_id: String,
    /// Its tool.
    pub tool: String,
    /// How it ended: `cancelled`, or what it already was.
    pub state: JobState,
    /// What to do next.
    pub next: Next,
}

impl Tool for JobCancel {
    const NAME: &'static str = "job_cancel";
    const TITLE: &'static str = "Cancel a job";
    const DESCRIPTION: &'static str = "Cancel a running build, benchmark or evaluation job and end all its processes. \
        Records already written stay. A job that has ended is left as it is.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Inline;
    type Params = Params;
    type Output = Output;

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let job = cancel::cancel(&Store::of(context.workspace()?), &params.job_id)?;
        Ok(Output { tool: job.request.tool, state: job.state.state, next: Next::call("run_status"), job_id: job.id })
    }
}
