//! `crit eval`: how fast a candidate is, how near to physics and to the model; and the single measurements.

use super::call::{self, Face};
use super::printer::Printer;
use super::probe;
use clap::Subcommand;
use crit_core::plugin::Assembly;
use crit_eval::probe::ProbeOptions;
use crit_eval::speed::DirectOptions;
use crit_tools::{Context, ToolError, assembly, engines, host, limits, speed};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    whole: Whole,
}

/// Arguments of the whole evaluation.
#[derive(clap::Args, Debug)]
pub struct Whole {
    /// Digest, the beginning of it, or name; the newest candidate if not given.
    #[arg(long)]
    candidate: Option<String>,
    /// Tokens generated for each prompt.
    #[arg(long)]
    generate_tokens: Option<u32>,
    /// Fresh repeats of each prompt.
    #[arg(long)]
    repeats: Option<u32>,
    /// Most tokens of each quality text.
    #[arg(long)]
    quality_tokens: Option<u32>,
    /// Seed of prompts and sampling.
    #[arg(long)]
    seed: Option<u64>,
    /// Run again although it was measured.
    #[arg(long)]
    fresh: bool,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Prefill and decode speed of a model, straight through the engine protocol.
    Speed(Speed),
    /// Measure this machine.
    Probe(probe::Args),
}

/// Arguments of `speed`.
#[derive(clap::Args, Debug)]
struct Speed {
    /// Model file or folder.
    model: PathBuf,
    /// `base`, `reference`, `plain`, or an engine.json.
    #[arg(long, default_value = "base")]
    engine: String,
    /// Where it runs.
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Kernel threads; all cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Prompt tokens.
    #[arg(short = 'p', long, default_value_t = 512)]
    prompt_tokens: u32,
    /// Tokens to decode.
    #[arg(short = 'n', long, default_value_t = 128)]
    generate_tokens: u32,
    /// Tokens in the context before either.
    #[arg(short = 'd', long, default_value_t = 0)]
    depth: u32,
    /// Fresh repeats.
    #[arg(short = 'r', long, default_value_t = 5)]
    repeats: u32,
}

impl Face for Whole {
    const TOOL: &'static str = "eval";

    fn arguments(&self) -> Value {
        json!({"candidate": self.candidate, "generate_tokens": self.generate_tokens, "repeats": self.repeats,
            "quality_tokens": self.quality_tokens, "seed": self.seed})
    }

    fn fresh(&self) -> bool {
        self.fresh
    }

    fn said_no(output: &Value) -> bool {
        matches!(output["verdict"].as_str(), Some("FAIL" | "INVALID"))
    }
}

/// Runs the command.
///
/// # Errors
/// The candidate cannot be measured.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    match &args.action {
        None => call::run(&args.whole, context, printer),
        Some(Action::Probe(args)) => probe::run(args, context, printer),
        Some(Action::Speed(args)) => measure(args, context, printer),
    }
}

fn measure(args: &Speed, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    let kind = engines::Kind::parse(&args.engine)?;
    let mut plan = match &kind {
        engines::Kind::Assembly(path) => assembly::from_file(path)?,
        _ => Assembly::base(PathBuf::new()),
    };
    plan.model = call::absolute(&args.model);
    plan.target = args.target.clone();
    plan.threads = args.threads.or(plan.threads);
    let needed = args.depth as usize + args.prompt_tokens as usize + args.generate_tokens as usize + 1;
    let longest = crit_tools::model::open(&plan.model)?.program.max_context;
    plan.context = Some(plan.context.unwrap_or(needed).max(needed).min(longest));
    plan.max_batch = 1;
    assembly::check(plan.clone(), &[])?;
    let config = host::write_config(&context, &plan, &format!("speed-{}", std::process::id()))?;
    let command = host::own_command(&context, &config, kind.executor(), "speed")?;
    let probe = limits::measured(&context, false, &ProbeOptions::quick())?;
    let threads = plan.threads.and_then(|threads| u32::try_from(threads).ok()).unwrap_or(probe.machine.cores);
    let options = DirectOptions {
        prompt_tokens: args.prompt_tokens,
        generate_tokens: args.generate_tokens,
        depth: args.depth,
        repeats: args.repeats,
        ..DirectOptions::default()
    };
    let _alone = context.measure("eval speed")?;
    let measured = speed::through_protocol(&context, &plan, &command, &probe.limits(threads), &options);
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(measured?.0).unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
