//! A call of a tool that runs as a job: started or found, waited for as long as asked, answered short.

use super::store::Job;
use super::{JobState, Store, start, watch};
use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crate::tool::Entry;
use crit_core::error::ErrorKind;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Wait of a call that does not say how long: enough for what is nearly instant, within the two seconds a client is
/// promised.
const DEFAULT_WAIT_S: u64 = 1;

/// Adds the arguments every job call takes to the schema of its own.
pub fn add_arguments(root: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = root.get_mut("properties") else { return };
    properties.insert(
        "wait_s".into(),
        json!({"type": "integer", "minimum": 0, "default": DEFAULT_WAIT_S,
            "description": "Seconds to wait for the result before answering with a job_id."}),
    );
    properties.insert(
        "fresh".into(),
        json!({"type": "boolean", "default": false,
            "description": "Run again although the same call on the same inputs is running or done."}),
    );
}

/// Schema of the answer of a job call whose tool's output is `output`.
pub fn answer_schema(output: Map<String, Value>) -> Map<String, Value> {
    let text = json!({"type": "string"});
    let schema = json!({
        "type": "object",
        "properties": {
            "job_id": text,
            "state": {"type": "string", "enum": ["queued", "running", "done"]},
            "phase": text,
            "progress": {"type": "string", "description": "done/total of the phase"},
            "eta_s": {"type": "integer", "description": "Seconds left of the phase."},
            "waiting_for": {"type": "string", "description": "The job that measures on this machine now."},
            "reused": {"type": "boolean", "description": "An earlier job of the same call answers."},
            "result": Value::Object(output),
            "next": crate::schema::of::<Next>(),
        },
        "required": ["job_id", "state"],
        "additionalProperties": false
    });
    crate::schema::object(schema)
}

/// Splits the arguments of a job call from the tool's own.
fn split(arguments: &Value) -> Result<(Value, u64, bool), ToolError> {
    let mut own = arguments.clone();
    let usage = |path: &str, expected: &str| {
        ToolError::new(ErrorKind::Usage, format!("the arguments do not fit: {path}: expected {expected}"))
            .with_hint(format!("give {expected}, or leave {path} out"))
    };
    let Some(members) = own.as_object_mut() else {
        return Err(usage("the whole", "a JSON object"));
    };
    let wait_s = match members.shift_remove("wait_s") {
        None => DEFAULT_WAIT_S,
        Some(value) => value.as_u64().ok_or_else(|| usage("`wait_s`", "a whole number of seconds"))?,
    };
    let fresh = match members.shift_remove("fresh") {
        None => false,
        Some(value) => value.as_bool().ok_or_else(|| usage("`fresh`", "true or false"))?,
    };
    Ok((own, wait_s, fresh))
}

/// Starts or finds the job of a call and waits for it.
///
/// # Errors
/// The arguments do not fit, the job cannot be started, or it failed within the wait.
pub fn answer(tool: &Entry, context: &Context, arguments: &Value) -> Result<Value, ToolError> {
    let (own, wait_s, fresh) = split(arguments)?;
    let called_ms = super::now_ms();
    let job = start::start(tool, context, &own, fresh)?;
    let reused = job.request.created_ms < called_ms;
    let store = Store::of(context.workspace()?);
    let wait_s = wait_s.min(u64::from(context.wait_cap_s()));
    let job = watch::wait(context, &store, &job.id, Duration::from_secs(wait_s), None)?;
    describe(&job, reused)
}

/// Does the work in the call, for a tool that can without a workspace.
///
/// # Errors
/// The arguments do not fit or the work failed.
pub fn run_inline(tool: &Entry, context: &Context, arguments: &Value) -> Result<Value, ToolError> {
    let (own, ..) = split(arguments)?;
    let result = tool.run(context, &own)?;
    let next = result.get("next").cloned();
    let mut answer = json!({"job_id": "none", "state": "done", "result": result});
    if let (Some(next), Some(members)) = (next, answer.as_object_mut()) {
        members.insert("next".into(), next);
    }
    Ok(answer)
}

/// The answer for a job as it stands.
fn describe(job: &Job, reused: bool) -> Result<Value, ToolError> {
    let state = &job.state;
    let mut answer = Map::new();
    answer.insert("job_id".into(), job.id.clone().into());
    answer.insert("state".into(), serde_json::to_value(state.state).unwrap_or_default());
    if reused {
        answer.insert("reused".into(), true.into());
    }
    match state.state {
        JobState::Done => {
            let result = job.result()?;
            if let Some(next) = result.get("next") {
                answer.insert("next".into(), next.clone());
            }
            answer.insert("result".into(), result);
        }
        JobState::Failed | JobState::Cancelled => return Err(failure(job)),
        JobState::Queued | JobState::Running => {
            answer.insert("phase".into(), state.phase.clone().into());
            if let Some(progress) = state.progress {
                answer.insert("progress".into(), format!("{}/{}", progress.done, progress.total).into());
            }
            if let Some(eta_s) = state.eta_s() {
                answer.insert("eta_s".into(), eta_s.into());
            }
            if let Some(holder) = &state.waiting_for {
                let text = format!("{} ({} in {})", holder.job_id, holder.what, holder.workspace);
                answer.insert("waiting_for".into(), text.into());
            }
            let next = Next::call("job_status").with("job_id", job.id.clone()).with("wait_s", 30);
            answer.insert("next".into(), serde_json::to_value(next).unwrap_or_default());
        }
    }
    Ok(Value::Object(answer))
}

/// Why an ended job has no result.
pub fn failure(job: &Job) -> ToolError {
    job.state.error.clone().unwrap_or_else(|| {
        ToolError::new(ErrorKind::Check, format!("job {} was cancelled", job.id))
            .with_hint(format!("call `{}` again to start a new job", job.request.tool))
    })
}
