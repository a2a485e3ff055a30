//! Runs a tool from the command line: a long one as a job that is followed to its end.

use super::printer::Printer;
use crit_core::error::ErrorKind;
use crit_tools::jobs::{JobState, Store, call, start, watch};
use crit_tools::{Context, Entry, ToolError, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Time between two looks at a followed job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A job that takes longer than so many looks is one that people may want to leave.
const SAY_AFTER_LOOKS: u32 = 5;

/// The command line's face of a tool: flags that become its arguments.
pub trait Face {
    /// The tool.
    const TOOL: &'static str;

    /// Its arguments; members that are null are left out.
    fn arguments(&self) -> Value;

    /// Whether a finished job of the same call must not answer.
    fn fresh(&self) -> bool {
        false
    }

    /// Whether the output says that the check said no.
    fn said_no(output: &Value) -> bool {
        let _ = output;
        false
    }
}

/// Runs the tool behind `face` and prints its output.
///
/// # Errors
/// The call or its job failed.
pub fn run<F: Face>(face: &F, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let mut arguments = face.arguments();
    if let Some(members) = arguments.as_object_mut() {
        members.retain(|_, member| !member.is_null());
    }
    let output = call(F::TOOL, context, printer, &arguments, face.fresh())?;
    printer.output(&output)?;
    Ok(if F::said_no(&output) { ExitCode::from(ErrorKind::Check.exit_code()) } else { ExitCode::SUCCESS })
}

/// A path as seen from the current folder, for tools that work elsewhere.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_path_buf())
}

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
    let mut looks = 0;
    loop {
        looks += 1;
        if looks == SAY_AFTER_LOOKS {
            bar.suspend(|| printer.note(&format!("job {id} runs on by itself; `crit job cancel {id}` ends it")));
        }
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
