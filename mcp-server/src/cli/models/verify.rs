//! `crit models verify`: whether a checkpoint is sound.

use super::super::printer::Printer;
use crit_tools::{ToolError, verify};
use std::path::PathBuf;

/// Arguments.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Model file or folder.
    model: PathBuf,
}

pub(super) fn run(args: &Args, printer: &Printer) -> Result<(), ToolError> {
    let done = verify::verify(&args.model)?;
    printer.output(&serde_json::to_value(done).unwrap_or_default())
}
