//! `crit job-run`: the process that does a job's work.

use crit_tools::jobs::runner;
use crit_tools::{Context, ToolError};
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The job.
    id: String,
}

/// Runs the job to its end. How it ended is in its folder, whatever the exit code says.
///
/// # Errors
/// The job's folder cannot be read or written.
pub fn run(args: &Args, context: &Context) -> Result<ExitCode, ToolError> {
    // The log should have a panic's place.
    let _ = std::panic::take_hook();
    runner::run(context, &args.id)?;
    Ok(ExitCode::SUCCESS)
}
