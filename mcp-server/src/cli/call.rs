//! Runs a tool from the command line: a long one as a job that is followed to its end.

use super::printer::Printer;
use crit_tools::jobs::{JobState, Store, call, start, watch};
use crit_tools::{Context, Entry, ToolError, tool};
use serde_json::Value;
use std::time::Duration;

/// Time between two looks at a followed job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Calls `name`; returns its output.
///
/// # Errors
/// The call or its job failed.
pub fn call(
    name: &str,
    context: &Context,
    printer: &Printer,
    arguments: &Value,
    fresh: bool,
) -> Result<Value, ToolError> {
    let entry = tool::find(context.tools, name)?;
    if entry.is_job() && context.try_workspace().is_some() {
        follow(entry, context, printer, arguments, fresh)
    } else {
        entry.run(context, arguments)
    }
}

fn follow(
    entry: &Entry,
    context: &Context,
    printer: &Printer,
    arguments: &Value,
    fresh: bool,
) -> Result<Value, ToolError> {
    let job = start::start(entry, context, arguments, fresh)?;
    follow_job(context, printer, &job.id)
}

/// Follows job `id` to its end; returns its output.
///
/// # Errors
/// The job failed or was cancelled.
pub fn follow_job(context: &Context, printer: &Printer, id: &str) -> Result<Value, ToolError> {
    let store = Store::of(context.workspace()?);
    let bar = printer.progress();
    let mut cursor = 0;
    loop {
        let job = watch::wait(context, &store, id, LOOK_EVERY, None)?;
        loop {
            let (lines, next) = watch::log(&job.log(), cursor, 40);
            if lines.is_empty() {
                break;
            }
            cursor = next;
            bar.suspend(|| lines.iter().for_each(|line| printer.note(line)));
        }
        let progress = job.state.progress.map(|p| format!(" {}/{}", p.done, p.total)).unwrap_or_default();
        let waits = job.state.waiting_for.as_ref().map(|holder| format!(" (waits for {})", holder.job_id));
        bar.set_message(format!("{}: {}{progress}{}", job.request.tool, job.state.phase, waits.unwrap_or_default()));
        if job.state.state.is_final() {
            bar.finish_and_clear();
            return if job.state.state == JobState::Done { job.result() } else { Err(call::failure(&job)) };
        }
    }
}
