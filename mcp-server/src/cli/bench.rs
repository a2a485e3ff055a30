//! `crit bench`: is B faster than A; how fast is a server that is not crit.

use super::printer::Printer;
use crit_core::error::ErrorKind;
use crit_tools::bench::{self, Foreign};
use crit_tools::{Context, ToolError};
use std::path::PathBuf;
use std::process::ExitCode;

/// How it is decided, for `--help`.
const RULE: &str = "\
A and B run the same work in pairs, in random order, each run in a fresh process, each pair on text drawn after both \
were fixed. A is first run against itself: the largest median effect seen so in the last week is the margin, at least \
0.2 %. FASTER: the 95 % bootstrap interval of the median log ratio lies above the margin and 8 of 10 pairs agree in sign; \
SLOWER: mirrored; SAME: the interval lies within 1 % (or twice the margin); else twice as many pairs are taken once, and \
then AMBIGUOUS is the answer. A figure of --url is speed only: without log-probs of the whole vocabulary quality is \
\"not measured\".";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = RULE)]
pub struct Args {
    /// The engine compared with: a candidate, an engine.json, a model (its base engine), or http://HOST:PORT.
    #[arg(required_unless_present = "url", requires = "b")]
    a: Option<String>,
    /// The engine asked about.
    b: Option<String>,
    /// Measure the server at this address (OpenAI-compatible chat completions) on the speed suite.
    #[arg(long, conflicts_with = "a", value_name = "URL")]
    url: Option<String>,
    /// Pairs, at least 10.
    #[arg(long, default_value_t = 10)]
    pairs: u32,
    /// With --url: tokens generated for each prompt.
    #[arg(long, default_value_t = 128)]
    generate_tokens: u32,
    /// With --url: fresh repeats of each prompt.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// With --url: model file or folder whose tokenizer counts the server's tokens.
    #[arg(long, value_name = "MODEL")]
    tokenizer: Option<PathBuf>,
    /// With --url: longest sequence the server holds; longer prompts are skipped.
    #[arg(long)]
    context: Option<u32>,
    /// With --url: name of the model to ask for; the first it lists if not given.
    #[arg(long)]
    model: Option<String>,
    /// With --url: environment variable that holds the bearer token.
    #[arg(long, value_name = "VARIABLE")]
    key_from: Option<String>,
    /// Seed of order, prompts and sampling; drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// A side cannot be measured.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    let seed = args.seed.unwrap_or_else(bench::fresh_seed);
    let (output, bad) = match (&args.url, &args.a, &args.b) {
        (Some(url), _, _) => {
            let known = Foreign {
                tokenizer: args.tokenizer.clone(),
                context: args.context,
                model: args.model.clone(),
                bearer: bearer(args.key_from.as_deref())?,
            };
            let measured = bench::url(&context, url, &known, args.generate_tokens, args.repeats, seed)?;
            (serde_json::to_value(&measured), measured.state == "INVALID")
        }
        (None, Some(a), Some(b)) => (serde_json::to_value(bench::duel(&context, a, b, args.pairs, seed)?), false),
        _ => return Err(ToolError::new(ErrorKind::Usage, "give A and B, or --url").with_hint("crit bench --help")),
    };
    bar.finish_and_clear();
    printer.output(&output.unwrap_or_default())?;
    Ok(if bad { ExitCode::from(ErrorKind::Check.exit_code()) } else { ExitCode::SUCCESS })
}

fn bearer(variable: Option<&str>) -> Result<Option<String>, ToolError> {
    let Some(name) = variable else { return Ok(None) };
    std::env::var(name).map(Some).map_err(|_| {
        ToolError::new(ErrorKind::Usage, format!("the environment variable {name} is not set"))
            .with_hint("export it, or leave --key-from out")
    })
}
