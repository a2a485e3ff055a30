//! `crit job`: follow, list or cancel jobs.

use super::call;
use super::printer::Printer;
use clap::Subcommand;
use crit_tools::{Context, ToolError};
use serde_json::json;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the newest jobs.
    List,
    /// Show a job and the end of its wait.
    Status {
        /// The job.
        id: String,
        /// Seconds to wait for a change.
        #[arg(long, default_value_t = 0)]
        wait_s: u32,
        /// Where to read the log on.
        #[arg(long, default_value_t = 0)]
        cursor: u64,
    },
    /// Follow a job to its end and print its output.
    Follow {
        /// The job.
        id: String,
    },
    /// End a job.
    Cancel {
        /// The job.
        id: String,
    },
}

/// Runs the command.
///
/// # Errors
/// There is no such job, or it failed.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let output = match &args.action {
        Action::List => call::call("job_status", context, printer, &json!({}), false)?,
        Action::Status { id, wait_s, cursor } => {
            let arguments = json!({"job_id": id, "wait_s": wait_s, "cursor": cursor});
            call::call("job_status", context, printer, &arguments, false)?
        }
        Action::Follow { id } => call::follow_job(context, printer, id)?,
        Action::Cancel { id } => call::call("job_cancel", context, printer, &json!({"job_id": id}), false)?,
    };
    printer.output(&output)?;
    Ok(ExitCode::SUCCESS)
}
