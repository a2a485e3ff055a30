//! `crit models dequant`: the values of one tensor.

use super::super::printer::Printer;
use crit_tools::{ToolError, dequant};
use std::path::PathBuf;

/// Arguments.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Model file or folder.
    model: PathBuf,
    /// The tensor's Hugging Face name.
    #[arg(long)]
    tensor: String,
    /// Safetensors file to write; holds the tensor as f32.
    #[arg(long)]
    out: PathBuf,
}

pub(super) fn run(args: &Args, printer: &Printer) -> Result<(), ToolError> {
    let done = dequant::dequant(&args.model, &args.tensor, &args.out)?;
    printer.output(&serde_json::to_value(done).unwrap_or_default())
}
