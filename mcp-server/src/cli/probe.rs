//! `crit probe`: measure this machine.

use super::printer::Printer;
use crit_eval::probe::ProbeOptions;
use crit_kernels::backend::cuda;
use crit_tools::{Context, ToolError, gpu, limits};
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
    /// The GPUs instead: memory, matrix products, launches, the way to the host.
    #[arg(long)]
    devices: bool,
}

/// Runs the command.
///
/// # Errors
/// The machine cannot be measured.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    if args.devices {
        let all = cuda::devices().map_err(|absent| gpu::told(absent.into()))?;
        let found =
            all.iter().map(|facts| gpu::measured(&context, facts.ordinal, !args.kept)).collect::<Result<Vec<_>, _>>();
        bar.finish_and_clear();
        printer.output(&serde_json::json!({"devices": found?}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = if args.full { ProbeOptions::full() } else { ProbeOptions::quick() };
    let probe = limits::measured(&context, !args.kept, &options);
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(probe?).unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
