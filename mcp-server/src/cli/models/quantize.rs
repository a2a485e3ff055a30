//! `crit models quantize`: a checkpoint in another form.

use super::super::printer::Printer;
use crit_core::export::{QuantizeOptions, SCHEMES};
use crit_tools::{ToolError, quantize};
use std::path::PathBuf;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = schemes())]
pub(super) struct Args {
    /// Model file or folder.
    model: PathBuf,
    /// What to write; see below.
    #[arg(long)]
    to: String,
    /// File (GGUF) or folder (safetensors) to write; must not be there.
    #[arg(long)]
    out: PathBuf,
    /// Threads; all cores if not given.
    #[arg(long)]
    threads: Option<usize>,
}

fn schemes() -> String {
    let lines: Vec<String> = SCHEMES.iter().map(|scheme| format!("  {:12} {}", scheme.name, scheme.about)).collect();
    format!("Schemes:\n{}", lines.join("\n"))
}

pub(super) fn run(args: &Args, printer: &Printer) -> Result<(), ToolError> {
    let scheme = quantize::scheme(&args.to)?;
    let options = QuantizeOptions { threads: args.threads };
    let bar = printer.bytes_bar();
    let done = quantize::quantize(&args.model, scheme, &args.out, &options, &*printer.reporter(&bar))?;
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(done).unwrap_or_default())
}
