//! `crit engine-host`: the process an engine runs in.

use std::process::ExitCode;

/// Arguments: the host's own.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the host until its client says close.
pub fn run(args: &Args) -> ExitCode {
    crit_catalog::host::host_main_with(&[], args.arguments.iter().cloned())
}
