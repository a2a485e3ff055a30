//! `crit models synth`: a random checkpoint of a config's shapes.

use super::super::printer::Printer;
use crit_core::export::SynthOptions;
use crit_tools::{ToolError, synth};
use std::path::PathBuf;

/// Arguments.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// config.json, or a folder with one.
    config: PathBuf,
    /// Folder (safetensors) or file (GGUF) to write; must not be there.
    #[arg(long)]
    out: PathBuf,
    /// `safetensors` or `gguf`; by the ending of --out if not given.
    #[arg(long)]
    format: Option<String>,
    /// Element type of the matrices: `bf16`, `f16` or `f32`.
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Decides the values.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads; all cores if not given.
    #[arg(long)]
    threads: Option<usize>,
}

pub(super) fn run(args: &Args, printer: &Printer) -> Result<(), ToolError> {
    let options = SynthOptions {
        target: synth::target(args.format.as_deref(), &args.out)?,
        number: synth::number(&args.dtype)?,
        seed: args.seed,
        threads: args.threads,
    };
    let bar = printer.bytes_bar();
    let done = synth::synth(&args.config, &args.out, &options, &*printer.reporter(&bar))?;
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(done).unwrap_or_default())
}
