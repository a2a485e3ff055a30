//! `crit eval`: how fast a candidate is, how near to physics and to the model; and the single measurements.

use super::call::{self, Face};
use super::kernels;
use super::printer::Printer;
use super::probe;
use clap::Subcommand;
use crit_core::error::ErrorKind;
use crit_core::plugin::Assembly;
use crit_eval::probe::ProbeOptions;
use crit_eval::speed::DirectOptions;
use crit_tools::{Context, ToolError, assembly, engines, gpu, host, limits, speed};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The protocol, for `--help`.
const PROTOCOL: &str = "\
Protocol. The candidate is frozen; only then seeds, the line in front of each prompt, a secret text and secret prompts are
drawn. Frozen files, kept reference rows, measured limits and crit itself are hashed before and after.
  Speed    six prompts from a chat question to an agent session of 14,000 tokens, through the running server, streamed, sampled
           at the model's own settings, each engine decoding its own output; warm-up until three times agree within 2 %;
           medians of fresh repeats, geometric mean over prompts. A prompt longer than the context is SKIPPED and named. Only
           this process's clock counts. full: also five prompts outside the suite and two secret ones, 1 to 32 requests side
           by side, decoding behind a full context, and a minute without a pause.
  Ceiling  the least time the passes an engine ran could take on this machine, from its own bytes and the measured limits.
           A share above 100 % and the probe's spread is INVALID; on an unsteady machine a share is UNSTABLE.
  Quality  full-vocabulary KL divergence, perplexity and flips against the exact reference on every way to reach a logit: prompt,
           chunk edges, stored keys and values, width 1, depth, every batch width, mixed steps, prefix cache, reused slots,
           verified drafts. The worst path is the score; modes speed and preserve have gates on each path. Then what the
           engine generates against what it scores (sampled, argmax, logprobs, stop, free_run, text). The evaluator first
           measures itself against known answers.
  Honesty  the same prompt twice, public against secret prompts, processor time after the answer.
Verdicts: PASS, FAIL (quality), UNSTABLE (machine), INVALID (a figure cannot be right), INCOMPLETE. No speed verdict without a
quality verdict. The whole of it: docs/evaluation.md, how it is attacked: docs/cheats.md.";

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = PROTOCOL, after_help = PROTOCOL)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    whole: Whole,
}

/// Arguments of the whole evaluation.
#[derive(clap::Args, Debug)]
pub struct Whole {
    /// A candidate (digest, its beginning, or name), an engine.json, or a model (its base engine); the newest candidate if
    /// not given. What is no candidate is measured and not recorded.
    target: Option<String>,
    /// The candidate, as over MCP.
    #[arg(long, conflicts_with = "target")]
    candidate: Option<String>,
    /// How much: `quick` or `full`.
    #[arg(long, default_value = "quick", value_parser = ["quick", "full"])]
    suite: String,
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
    /// Check or time a kernel of one's own.
    Workbench {
        #[command(subcommand)]
        work: kernels::Work,
    },
}

/// Arguments of `speed`.
#[derive(clap::Args, Debug)]
struct Speed {
    /// Model file or folder.
    model: PathBuf,
    /// `base`, `full` (with every plugin made for the target alone), `reference`, `plain`, or an engine.json.
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
        json!({"candidate": self.candidate.as_ref().or(self.target.as_ref()), "suite": self.suite, "generate_tokens": self.generate_tokens, "repeats": self.repeats,
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
        None => match args.whole.target.as_deref().map(Path::new).filter(|path| path.exists()) {
            Some(path) => unrecorded(path, &args.whole, context, printer),
            None => call::run(&args.whole, context, printer),
        },
        Some(Action::Probe(args)) => probe::run(args, context, printer),
        Some(Action::Workbench { work }) => kernels::work(work, context, printer),
        Some(Action::Speed(args)) => measure(args, context, printer),
    }
}

/// Measures what is no candidate, here and now.
fn unrecorded(path: &Path, args: &Whole, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    let mut arguments = args.arguments();
    if let Some(members) = arguments.as_object_mut() {
        members.retain(|name, member| !member.is_null() && name != "candidate");
    }
    let params = serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ErrorKind::Usage, format!("these arguments do not fit: {error}")))?;
    let output = crit_tools::eval::unrecorded(&context, path, &params)?;
    bar.finish_and_clear();
    let output = serde_json::to_value(&output).unwrap_or_default();
    printer.output(&output)?;
    Ok(if Whole::said_no(&output) { ExitCode::from(ErrorKind::Check.exit_code()) } else { ExitCode::SUCCESS })
}

fn measure(args: &Speed, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let bar = printer.progress();
    let context = context.reporting_to(printer.reporter(&bar));
    let full = args.engine == "full";
    let kind = engines::Kind::parse(if full { "base" } else { &args.engine })?;
    let mut plan = match &kind {
        engines::Kind::Assembly(path) => assembly::from_file(path)?,
        _ => Assembly::base(PathBuf::new()),
    };
    plan.model = call::absolute(&args.model);
    plan.target = args.target.clone();
    plan.threads = args.threads.or(plan.threads);
    if full {
        plan.plugins = assembly::all_for(plan.backend())?;
    }
    let needed = args.depth as usize + args.prompt_tokens as usize + args.generate_tokens as usize + 1;
    let longest = crit_tools::model::open(&plan.model)?.program.max_context;
    plan.context = Some(plan.context.unwrap_or(needed).max(needed).min(longest));
    plan.max_batch = 1;
    assembly::check(plan.clone(), &[])?;
    let config = host::write_config(&context, &plan, &format!("speed-{}", std::process::id()))?;
    let command = host::own_command(&context, &config, kind.executor(), "speed")?;
    let found = if plan.backend() == "cuda" {
        gpu::measured(&context, plan.device().unwrap_or(0), false)?.limits()
    } else {
        let probe = limits::measured(&context, false, &ProbeOptions::quick())?;
        let threads = plan.threads.and_then(|threads| u32::try_from(threads).ok()).unwrap_or(probe.machine.cores);
        probe.limits(threads)
    };
    let options = DirectOptions {
        prompt_tokens: args.prompt_tokens,
        generate_tokens: args.generate_tokens,
        depth: args.depth,
        repeats: args.repeats,
        ..DirectOptions::default()
    };
    let _alone = context.measure("eval speed")?;
    let measured = speed::through_protocol(&context, &plan, &command, &found, &options);
    bar.finish_and_clear();
    printer.output(&serde_json::to_value(measured?.0).unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
