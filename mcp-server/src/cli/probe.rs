//! `crit probe`: measure this machine.

use super::printer::Printer;
use crit_eval::probe::ProbeOptions;
use crit_tools::{Context, ToolError, limits};
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// About a minute instead of seconds: more sizes, more and longer samples.
    #[arg(long)]
    full: bool,
    /// Show what was measured since boot, if there is something.
    #[arg(long)]
    kept: bool,
}

/// Runs the command.
///
/// # Errors
/// The machine cannot be measured.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    let options = if args.full { ProbeOptions::full() } else { ProbeOptions::quick() };
    let probe = limits::measured(&context, !args.kept, &options);
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(probe?).unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
