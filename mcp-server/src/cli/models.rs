//! `crit models`: look at a checkpoint, tokenize with it, get its logits.

mod dequant;
mod quantize;
mod synth;
mod verify;

use super::printer::Printer;
use clap::Subcommand;
use crit_core::error::ErrorKind;
use crit_core::text::Tokenizer;
use crit_tools::{Context, ToolError, engines, logits, model};
use serde_json::json;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Write the values of one tensor as f32.
    Dequant(dequant::Args),
    /// Write the checkpoint in another form, with a record of the errors.
    Quantize(quantize::Args),
    /// Write a random checkpoint of a config's shapes, for measuring speed.
    Synth(synth::Args),
    /// Whether the files are sound and make a model; exit code 0 if so.
    Verify(verify::Args),
    /// Architecture, sizes, context, token ids that matter.
    Inspect {
        /// Model file or folder.
        model: PathBuf,
    },
    /// Lines on standard input become JSON lists of token ids on standard output.
    Tokenize {
        /// Model file or folder.
        model: PathBuf,
        /// Do not add the tokens the model wants around a text.
        #[arg(long)]
        no_special: bool,
    },
    /// Logits of the token ids in a safetensors file.
    Logits {
        /// Model file or folder.
        model: PathBuf,
        /// Safetensors file; every tensor named `input_ids*`, [T] or [N, T], is used.
        #[arg(long)]
        input: PathBuf,
        /// Safetensors file to write; holds tensors named `logits*`.
        #[arg(long)]
        out: PathBuf,
        /// `reference`, `plain`, `base`, or an engine.json.
        #[arg(long, default_value = "reference")]
        engine: String,
        /// Kernel threads; all cores if not given.
        #[arg(long)]
        threads: Option<usize>,
    },
}

/// Runs the command.
///
/// # Errors
/// The model or the input cannot be used.
pub fn run(args: &Args, _: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    match &args.action {
        Action::Dequant(args) => dequant::run(args, printer)?,
        Action::Quantize(args) => quantize::run(args, printer)?,
        Action::Synth(args) => synth::run(args, printer)?,
        Action::Verify(args) => verify::run(args, printer)?,
        Action::Inspect { model } => {
            let facts = model::inspect(model)?;
            printer.output(&serde_json::to_value(facts).unwrap_or_default())?;
        }
        Action::Tokenize { model, no_special } => tokenize(model, !no_special, printer)?,
        Action::Logits { model, input, out, engine, threads } => {
            let kind = engines::Kind::parse(engine)?;
            let ids = logits::read_ids(input)?;
            let longest = ids.iter().filter_map(|t| t.shape.last().copied()).max().unwrap_or(1);
            let mut executor = engines::executor(model, &kind, longest, *threads)?;
            let vocab = executor.info().vocab;
            let mut results = Vec::new();
            for tensor in ids {
                let values = logits::compute(&mut *executor, &tensor)?;
                results.push((tensor, values));
            }
            logits::write(out, &results, vocab)?;
            let names: Vec<String> = results.iter().map(|(tensor, _)| format!("logits{}", tensor.suffix)).collect();
            printer.output(&json!({"out": out.display().to_string(), "tensors": names, "engine": engine}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tokenize(model: &Path, special: bool, printer: &Printer) -> Result<(), ToolError> {
    let checkpoint = crit_core::files::Checkpoint::open(model)?;
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint)?;
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        if read.map_err(|error| ToolError::io("read", Path::new("standard input"), &error))? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let text = std::str::from_utf8(&line)
            .map_err(|error| ToolError::new(ErrorKind::Input, format!("standard input is not UTF-8: {error}")))?;
        printer.out(&json!(tokenizer.encode(text, special)?).to_string())?;
    }
}
