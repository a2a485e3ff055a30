//! The command line: one file a command.
//!
//! Data goes to standard output, everything else to standard error. `--json` prints exactly the tool's output. Exit
//! codes: 0 done, 1 the check said no, 2 usage, 3 bad input, 4 environment, 5 engine, 70 a fault of crit.

pub mod ablate;
pub mod bench;
pub mod build;
pub mod call;
pub mod clients;
pub mod demo;
pub mod doctor;
pub mod engine_host;
pub mod eval;
pub mod inference;
pub mod init;
pub mod job;
pub mod job_run;
pub mod kernels;
pub mod mcp;
pub mod models;
pub mod plan;
pub mod plugins;
pub mod printer;
pub mod probe;
pub mod recon;
pub mod run;
pub mod seal;
pub mod serve;
pub mod smoke;

use clap::{Parser, Subcommand};
use crit_core::error::ErrorKind;
use crit_tools::{Context, TOOLS, ToolError, Workspace};
use printer::Printer;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Builds, measures and serves an LLM inference engine for one checkpoint on one machine.
#[derive(Parser)]
#[command(name = "crit", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the check said no, 2 usage, 3 bad input, 4 environment, 5 engine, \
70 a fault of crit.";

/// Options of all commands.
#[derive(clap::Args, Clone, Debug)]
pub struct Global {
    /// The folder to work in.
    #[arg(long, global = true, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Print the tool's output as JSON, and nothing else, on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no logs.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// What each plugin of a candidate gives.
    Ablate(ablate::Args),
    /// Is engine B faster than A; how fast is a server that is not crit.
    Bench(bench::Args),
    /// Freeze, check and build the candidate in engine/.
    Build(build::Args),
    /// The whole loop on the embedded model: two candidates, measured, the better one sealed.
    Demo(demo::Args),
    /// What of this machine and workspace would get in the way.
    Doctor(doctor::Args),
    /// Run an engine and serve the engine protocol (started by crit itself).
    #[command(hide = true)]
    EngineHost(engine_host::Args),
    /// How fast a candidate is, how near to physics and to the model.
    Eval(eval::Args),
    /// Find strategies of the catalogue.
    Inference(inference::Args),
    /// Make a workspace.
    Init(init::Args),
    /// Follow, list or cancel jobs.
    Job(job::Args),
    /// Run a job (started by crit itself).
    #[command(hide = true)]
    JobRun(job_run::Args),
    /// Where kernels can be had, and a bench to write one's own at.
    Kernels(kernels::Args),
    /// Serve MCP on standard input and output.
    Mcp(mcp::Args),
    /// Look at a checkpoint, tokenize with it, get its logits.
    Models(models::Args),
    /// Say what is tried next and what it should bring.
    Plan(plan::Args),
    /// Plugins of the catalogue and of one's own engine package.
    Plugins(plugins::Args),
    /// Measure this machine.
    Probe(probe::Args),
    /// What machine, what model, how far physics allows.
    Recon(recon::Args),
    /// The records of this workspace.
    Run(run::Args),
    /// Decide for a candidate and close the run.
    Seal(seal::Args),
    /// Serve a sealed candidate.
    Serve(serve::Args),
    /// Does a candidate work at all.
    Smoke(smoke::Args),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    quiet_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return printer::usage(&error),
    };
    let printer = Printer::new(&cli.global);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&cli, &printer))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => printer.failed(&error),
        Err(panic) => {
            let text = crit_tools::jobs::runner::panic_text(&*panic);
            printer.failed(
                &ToolError::new(ErrorKind::Internal, format!("internal error: {text}"))
                    .with_hint("this is a fault of crit; run again with RUST_BACKTRACE=1 and report it"),
            )
        }
    }
}

fn run(cli: &Cli, printer: &Printer) -> Result<ExitCode, ToolError> {
    let context = context(&cli.global)?;
    match &cli.command {
        Command::Ablate(args) => call::run(args, &context, printer),
        Command::Bench(args) => bench::run(args, &context, printer),
        Command::Build(args) => call::run(args, &context, printer),
        Command::Demo(args) => demo::run(args, &context, printer),
        Command::Doctor(args) => doctor::run(args, &context, printer),
        Command::EngineHost(args) => Ok(engine_host::run(args)),
        Command::Eval(args) => eval::run(args, &context, printer),
        Command::Inference(args) => call::run(args, &context, printer),
        Command::Init(args) => init::run(args, &context, printer),
        Command::Job(args) => job::run(args, &context, printer),
        Command::JobRun(args) => job_run::run(args, &context),
        Command::Kernels(args) => kernels::run(args, &context, printer),
        Command::Mcp(_) => mcp::run(context),
        Command::Models(args) => models::run(args, &context, printer),
        Command::Plan(args) => call::run(args, &context, printer),
        Command::Plugins(args) => plugins::run(args, &context, printer),
        Command::Probe(args) => probe::run(args, &context, printer),
        Command::Recon(args) => call::run(args, &context, printer),
        Command::Run(args) => run::run(args, &context, printer),
        Command::Seal(args) => call::run(args, &context, printer),
        Command::Serve(args) => serve::run(args, &context, printer),
        Command::Smoke(args) => call::run(args, &context, printer),
    }
}

/// The context of a command: the named workspace, else the current folder unless that is the root of the system.
fn context(global: &Global) -> Result<Context, ToolError> {
    let workspace = match &global.workspace {
        Some(folder) => Some(Workspace::at(folder)?),
        None => match std::env::current_dir() {
            Ok(folder) if folder != Path::new("/") => Some(Workspace::at(&folder)?),
            _ => None,
        },
    };
    let program = std::env::current_exe().map_err(|error| {
        ToolError::new(ErrorKind::Environment, format!("cannot find crit's own executable: {error}"))
    })?;
    Ok(Context::new(workspace, program, TOOLS).for_client("crit-cli"))
}

/// A panic is told by whoever catches it, once; its place is told only when asked for.
fn quiet_panics() {
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        std::panic::set_hook(Box::new(|info| {
            tracing::debug!("panic: {info}");
        }));
    }
}
