//! `crit kernels`: where kernels can be had, and a bench to write one's own at.

use super::printer::Printer;
use clap::Subcommand;
use crit_core::error::ErrorKind;
use crit_tools::{Context, ToolError, bench, workbench};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Problems a kernel can be written for, and providers of kernels: what each covers and how it is called.
    List,
    /// Make a kernel's folder: the plainest kernel in C, and the shapes of a checkpoint.
    New {
        /// The folder to make.
        folder: PathBuf,
        /// The problem.
        #[arg(long, default_value = "linear")]
        op: String,
        /// Model file or folder whose shapes it is for.
        #[arg(long)]
        model: Option<PathBuf>,
    },
    #[command(flatten)]
    Work(Work),
}

/// What `crit eval workbench` does too.
#[derive(Subcommand, Debug)]
pub enum Work {
    /// Is a kernel right: against an f64 reference, on its shapes, their neighbours and hidden ones.
    Check {
        /// Its folder.
        folder: PathBuf,
        /// Seed of the contents; drawn if not given.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// How fast is a kernel: cold and warm, against the best yardstick here and the machine's floor.
    Bench {
        /// Its folder.
        folder: PathBuf,
        /// Timed calls a shape, cold and warm each.
        #[arg(long, default_value_t = 15)]
        calls: usize,
        /// Seed of the contents; drawn if not given.
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// Runs the command.
///
/// # Errors
/// The kernel does not compile or cannot run.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    match &args.action {
        Action::List => printer.output(&workbench::list())?,
        Action::New { folder, op, model } => {
            let made = workbench::new(folder, op, model.as_deref())?;
            printer.output(&serde_json::to_value(made).unwrap_or_default())?;
        }
        Action::Work(work) => return self::work(work, context, printer),
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks or times a kernel.
///
/// # Errors
/// It does not compile or cannot run.
pub fn work(work: &Work, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    // Drawn now: the kernel is what it is.
    let seed = |seed: &Option<u64>| seed.unwrap_or_else(bench::fresh_seed);
    let (output, good) = match work {
        Work::Check { folder, seed: given } => {
            let checked = workbench::check_folder(&context, folder, seed(given))?;
            let good = checked.complaints.is_empty();
            (serde_json::to_value(checked), good)
        }
        Work::Bench { folder, calls, seed: given } => {
            let benched = workbench::bench_folder(&context, folder, (*calls).max(3), seed(given))?;
            let good = benched.valid;
            (serde_json::to_value(benched), good)
        }
    };
    bar.finish_and_clear();
    printer.output(&output.unwrap_or_default())?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Check.exit_code()) })
}
