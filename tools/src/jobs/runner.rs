//! The process that does a job's work.

use super::process::ProcessId;
use super::{Holder, JobState, Progress, Request, Store, now_ms};
use crate::context::{Context, Reporter};
use crate::error::ToolError;
use crate::tool;
use crit_core::error::ErrorKind;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the runner says that it lives.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
/// Least time between two progress marks on disk.
const MARK_EVERY_MS: u64 = 200;

/// Runs job `id` of the context's workspace to its end. The process should do nothing else.
///
/// # Errors
/// The job cannot be read or its end cannot be written; a failure of the work itself is the job's own.
pub fn run(context: &Context, id: &str) -> Result<JobState, ToolError> {
    // A group leader cannot start a session; it then already has a group of its own.
    let _ = rustix::process::setsid();
    let store = Store::of(context.workspace()?);
    if let Some(me) = ProcessId::current() {
        store.set_runner(id, &me)?;
    }
    let job = store.load(id)?;
    let reporter = Arc::new(DiskReporter { store: store.clone(), id: id.to_string(), marked_ms: Mutex::new(0) });
    store.update(id, |state| state.state = JobState::Running)?;
    keep_time(store.clone(), id.to_string(), job.request.deadline_s);
    let context = context.for_client(&job.request.client).reporting_to(reporter);
    let (end, error) = match work(&context, &job.request) {
        Ok(result) => {
            store.set_result(id, &result)?;
            (JobState::Done, None)
        }
        Err(error) => (JobState::Failed, Some(error)),
    };
    store.finish(id, end, error)?;
    Ok(end)
}

fn work(context: &Context, request: &Request) -> Result<serde_json::Value, ToolError> {
    let tool = tool::find(context.tools, &request.tool)?;
    catch_unwind(AssertUnwindSafe(|| tool.run(context, &request.arguments))).unwrap_or_else(|panic| {
        Err(ToolError::new(ErrorKind::Internal, format!("{} failed inside: {}", tool.name, panic_text(&*panic)))
            .with_hint("this is a fault of crit; the job's log has the place"))
    })
}

/// The text of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Writes heartbeats, and ends the whole group when the deadline passes or the job was ended by another process.
fn keep_time(store: Store, id: String, deadline_s: u64) {
    let end_ms = now_ms().saturating_add(deadline_s.saturating_mul(1000));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(HEARTBEAT_EVERY);
            if now_ms() > end_ms {
                let error = ToolError::new(ErrorKind::Environment, format!("the job ran past its {deadline_s} s"))
                    .with_hint("look at its log for what hangs");
                let _ = store.finish(&id, JobState::Failed, Some(error));
                end_group();
            }
            if matches!(store.update(&id, |state| state.heartbeat_ms = now_ms()), Ok(false) | Err(_)) {
                // Finished by someone else (cancelled), by us (the process is about to exit), or the folder is gone.
                std::thread::sleep(HEARTBEAT_EVERY);
                end_group();
            }
        }
    });
}

fn end_group() {
    if let Some(me) = ProcessId::current() {
        me.signal_group(rustix::process::Signal::KILL);
    }
    std::process::abort();
}

/// Reports into the job's folder.
struct DiskReporter {
    store: Store,
    id: String,
    marked_ms: Mutex<u64>,
}

impl DiskReporter {
    fn write_log(&self, line: &str) {
        // Standard error of a runner is the job's log.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl Reporter for DiskReporter {
    fn phase(&self, name: &str) {
        self.write_log(&format!("== {name}"));
        let _ = self.store.update(&self.id, |state| {
            state.phase = name.to_string();
            state.phase_ms = now_ms();
            state.progress = None;
        });
    }

    fn progress(&self, done: u64, total: u64) {
        let now = now_ms();
        let mut marked = self.marked_ms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if now.saturating_sub(*marked) < MARK_EVERY_MS && done < total {
            return;
        }
        *marked = now;
        let _ = self.store.update(&self.id, |state| state.progress = Some(Progress { done, total }));
    }

    fn log(&self, line: &str) {
        self.write_log(line);
    }

    fn waiting(&self, holder: Option<&Holder>) {
        let _ = self.store.update(&self.id, |state| {
            if state.waiting_for.as_ref() != holder {
                state.waiting_for = holder.cloned();
                state.state = if holder.is_some() { JobState::Queued } else { JobState::Running };
            }
        });
    }

    fn job_id(&self) -> Option<String> {
        Some(self.id.clone())
    }
}
