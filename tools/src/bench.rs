//! `crit bench`: is B faster than A, and how fast is a server that is not crit.
//!
//! Two engines of one checkpoint meet in an [arena](crate::duel); anything else is compared through its server, on the
//! first prompts of the speed suite. Speed alone is measured here: quality is `pass` where a candidate's evaluation says
//! so, and `not measured` otherwise, never assumed.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::duel::{Arena, Contender};
use crate::engines::Kind;
use crate::error::ToolError;
use crate::host;
use crate::judge;
use crate::model;
use crate::run_status::verdict;
use crate::runs::{self, RunState};
use crate::speed::{self, Served};
use crit_core::error::ErrorKind;
use crit_core::plugin::Assembly;
use crit_core::protocol::spawn::EngineCommand;
use crit_core::text::Tokenizer;
use crit_eval::decision::{Comparison, Decision, FEWEST_PAIRS, Side, Turn, compare};
use crit_eval::speed::http::Address;
use crit_eval::speed::served::{ServedContext, measure};
use crit_eval::speed::{ServedOptions, ServedSpeed};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Context taken for granted of a server that does not say: what does not fit it refuses, and is skipped.
const UNKNOWN_CONTEXT: u32 = 1 << 20;
/// Bytes of text a token has about, for prompts of a server whose tokenizer is not known.
const BYTES_A_TOKEN: usize = 4;
/// Prompts of the suite a comparison through servers runs.
const COMPARED_PROMPTS: [&str; 2] = ["chat_question", "code_review"];
/// Tokens generated for each of them.
const COMPARED_TOKENS: u32 = 48;

/// What is compared.
#[derive(Clone, Debug)]
pub enum Target {
    /// A running server.
    Url(String),
    /// An engine that is started here.
    Engine {
        /// How.
        command: EngineCommand,
        /// Its assembly.
        assembly: Box<Assembly>,
        /// What it is, for people.
        what: String,
        /// Its recorded quality verdict.
        quality: Option<String>,
    },
}

impl Target {
    /// Reads a target: a URL, an engine.json, a model (its base engine), or a candidate of the run by digest or name.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(context: &Context, text: &str, side: &str) -> Result<Self, ToolError> {
        if text.contains("://") {
            Address::parse(text)?;
            return Ok(Self::Url(text.into()));
        }
        let path = Path::new(text);
        if path.extension().is_some_and(|end| end == "json") && path.is_file() {
            let assembly = crate::assembly::from_file(path)?;
            return Self::of_assembly(context, assembly, text, side);
        }
        if path.exists() && model::open(path).is_ok() {
            let assembly = Assembly::base(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
            return Self::of_assembly(context, assembly, &format!("base engine of {text}"), side);
        }
        Self::of_candidate(context, text, side)
    }

    fn of_assembly(context: &Context, assembly: Assembly, what: &str, side: &str) -> Result<Self, ToolError> {
        crate::assembly::check(assembly.clone(), &[])?;
        let config = host::write_config(context, &assembly, &format!("bench-{side}-{}", std::process::id()))?;
        let command = host::own_command(context, &config, Kind::Base.executor(), &format!("bench-{side}"))?;
        Ok(Self::Engine { command, assembly: Box::new(assembly), what: what.into(), quality: None })
    }

    fn of_candidate(context: &Context, text: &str, side: &str) -> Result<Self, ToolError> {
        let store = runs::store(context)?;
        let state = RunState::read(&store, runs::newest(&store)?)?;
        let one = state.find(Some(text))?;
        let candidate = Candidate::load(context.workspace()?, &one.digest.unwrap_or(one.record))?;
        let command = host::command(context, &candidate, &format!("bench-{side}"))?;
        let what = format!("candidate {} ({})", candidate.name, candidate.digest.short());
        let quality = verdict(one).map(String::from);
        Ok(Self::Engine { command, assembly: Box::new(candidate.assembly), what, quality })
    }

    fn what(&self) -> &str {
        match self {
            Self::Url(url) => url,
            Self::Engine { what, .. } => what,
        }
    }

    fn quality(&self) -> String {
        match self {
            Self::Engine { quality: Some(verdict), .. } => verdict.clone(),
            _ => "not measured".into(),
        }
    }
}

/// Is B faster than A.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Compared {
    /// FASTER, SLOWER, SAME or AMBIGUOUS: B against A.
    pub outcome: String,
    /// In a sentence.
    pub says: String,
    /// A.
    pub a: Compete,
    /// B.
    pub b: Compete,
    /// What was run.
    pub about: String,
    /// The largest effect this machine showed between an engine and itself, percent.
    pub noise_percent: f64,
    /// Whether every run had a process of its own.
    pub fresh_processes: bool,
    /// The decision with all pairs.
    pub decision: Decision,
}

/// One side.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Compete {
    /// What it is.
    pub what: String,
    /// Its recorded quality verdict, or `not measured`.
    pub quality: String,
}

/// Compares two targets.
///
/// # Errors
/// A target cannot be started or measured.
pub fn duel(context: &Context, a: &str, b: &str, pairs: u32, seed: u64) -> Result<Compared, ToolError> {
    let (a, b) = (Target::parse(context, a, "a")?, Target::parse(context, b, "b")?);
    let _alone = context.measure("bench")?;
    let pairs = (pairs as usize).max(FEWEST_PAIRS);
    let same_model = match (&a, &b) {
        (Target::Engine { assembly: a, .. }, Target::Engine { assembly: b, .. }) => a.model == b.model,
        _ => false,
    };
    let (decision, noise, about, fresh) = match (&a, &b) {
        (Target::Engine { command: one, assembly, .. }, Target::Engine { command: other, .. }) if same_model => {
            let arena = Arena::new(context, &assembly.model)?;
            let (one, other) = (Contender { command: one.clone() }, Contender { command: other.clone() });
            context.report().phase("bench: A against itself");
            let noise = arena.noise(&one, pairs, seed)?;
            context.report().phase("bench: B against A");
            let duelled = arena.compare((&one, &other), pairs, noise, !seed)?;
            let about = format!("sessions through the engine protocol, {} tokens each", duelled.tokens);
            (duelled.decision, noise, about, duelled.fresh_processes)
        }
        _ => {
            let mut time = |turn: Turn| through_server(context, if turn.side == Side::A { &a } else { &b }, turn.seed);
            context.report().phase("bench: A against itself");
            let mut own = |turn: Turn| through_server(context, &a, turn.seed);
            let endless = Comparison { pairs, noise_floor: f64::MAX, seed };
            let noise = crit_eval::decision::noise_floor(&[compare(&endless, &mut own)?.pairs]);
            context.report().phase("bench: B against A");
            let decision = compare(&Comparison { pairs, noise_floor: noise, seed: !seed }, &mut time)?;
            let fresh = [&a, &b].iter().all(|target| matches!(target, Target::Engine { .. }));
            let about = format!("{} through the server, {COMPARED_TOKENS} tokens each", COMPARED_PROMPTS.join(" and "));
            (decision, noise, about, fresh)
        }
    };
    let (a, b) = (side(&a), side(&b));
    Ok(Compared {
        outcome: decision.outcome.word().into(),
        says: sentence(&decision, &a, &b),
        a,
        b,
        about,
        noise_percent: (noise.exp_m1() * 1e4).round() / 100.0,
        fresh_processes: fresh,
        decision,
    })
}

/// A seed nobody could know before.
pub fn fresh_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

fn side(target: &Target) -> Compete {
    Compete { what: target.what().into(), quality: target.quality() }
}

fn sentence(decision: &Decision, a: &Compete, b: &Compete) -> String {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let quality = match (a.quality.as_str(), b.quality.as_str()) {
        ("pass", "pass") => String::new(),
        (a, b) => format!("; a faster engine is no better one before its quality is known (A: {a}, B: {b})"),
    };
    format!(
        "B is {} ({}, between {} and {}, {} pairs){quality}",
        decision.outcome.word(),
        percent(decision.speedup),
        percent(decision.low),
        percent(decision.high),
        decision.pairs.len()
    )
}

/// Seconds a target takes for the compared prompts, served.
fn through_server(context: &Context, target: &Target, seed: u64) -> Result<f64, ToolError> {
    let options = |context_tokens: u32| ServedOptions {
        generate_tokens: COMPARED_TOKENS,
        repeats: 1,
        prompts: Some(COMPARED_PROMPTS.iter().map(|name| (*name).into()).collect()),
        warm_up_limit: Duration::from_secs(1),
        ..ServedOptions::new(context_tokens, seed)
    };
    let speed = match target {
        Target::Url(url) => foreign(context, url, &Foreign::default(), options(UNKNOWN_CONTEXT))?,
        Target::Engine { command, assembly, .. } => {
            let model = model::open(&assembly.model)?;
            let served = Served::start(&model, command.clone(), &speed::model_name(assembly))?;
            let tokenizer = judge::tokenizer(&assembly.model)?;
            let mut known = ServedContext {
                count_tokens: &|text| tokenizer.encode(text, true).map_or(usize::MAX, |ids| ids.len()),
                counts_are_exact: false,
                stats: None,
                ceiling: None,
            };
            let options = options(served.info.max_context);
            let speed = measure(&served.server.url(), &options, &mut known, &|_| {})?;
            served.server.stop()?;
            speed
        }
    };
    seconds(&speed).ok_or_else(|| {
        ToolError::new(ErrorKind::Engine, format!("{} brought no time to compare", target.what()))
            .with_hint("measure it alone with `crit bench --url` or `crit eval speed` and see")
    })
}

/// Time of the same work on every server: to the first token, and for the others at the speed measured.
fn seconds(speed: &ServedSpeed) -> Option<f64> {
    let one = |prompt: &crit_eval::speed::served::PromptSpeed| {
        let first_s = prompt.first_token_ms.as_ref()?.median / 1e3;
        Some(first_s + f64::from(COMPARED_TOKENS - 1) / prompt.decode_tok_s.as_ref()?.median)
    };
    (speed.prompts.len() == COMPARED_PROMPTS.len()).then(|| speed.prompts.iter().map(one).sum::<Option<f64>>())?
}

/// What is known of a server that is not crit's.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// Its model's tokenizer: a model file or folder.
    pub tokenizer: Option<PathBuf>,
    /// Longest sequence it holds.
    pub context: Option<u32>,
    /// Name of the model to ask for; the first it lists if not given.
    pub model: Option<String>,
    /// Bearer token to send.
    pub bearer: Option<String>,
}

/// A server's figures.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Measured {
    /// Where it is.
    pub url: String,
    /// The model it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `not measured`, always: a server that offers no full log-probs cannot show how near to its model it is.
    pub quality: String,
    /// Why.
    pub quality_why: String,
    /// VALID, or INVALID with the reason in `speed.reason`.
    pub state: String,
    /// The suite's figures.
    pub speed: ServedSpeed,
}

/// Measures the server at `url` on the speed suite.
///
/// # Errors
/// It cannot be reached, or its tokens cannot be counted.
pub fn url(
    context: &Context,
    url: &str,
    known: &Foreign,
    tokens: u32,
    repeats: u32,
    seed: u64,
) -> Result<Measured, ToolError> {
    let _alone = context.measure("bench")?;
    let address = Address::parse(url)?;
    let known = Foreign { model: known.model.clone().or_else(|| first_model(&address, known)), ..known.clone() };
    let options = ServedOptions {
        generate_tokens: tokens.max(1),
        repeats: repeats.max(1),
        ..ServedOptions::new(known.context.unwrap_or(UNKNOWN_CONTEXT), seed)
    };
    let speed = foreign(context, url, &known, options)?;
    let invalid = speed.state == Some(crit_eval::ceiling::ShareState::Invalid);
    Ok(Measured {
        url: url.into(),
        model: known.model,
        quality: "not measured".into(),
        quality_why: "the server offers no log-probs of the whole vocabulary".into(),
        state: if invalid { "INVALID" } else { "VALID" }.into(),
        speed,
    })
}

fn foreign(context: &Context, url: &str, known: &Foreign, options: ServedOptions) -> Result<ServedSpeed, ToolError> {
    let tokenizer: Option<Tokenizer> = known.tokenizer.as_deref().map(judge::tokenizer).transpose()?;
    let count = |text: &str| match &tokenizer {
        Some(tokenizer) => tokenizer.encode(text, false).map_or(usize::MAX, |ids| ids.len()),
        None => text.len().div_ceil(BYTES_A_TOKEN),
    };
    let mut told =
        ServedContext { count_tokens: &count, counts_are_exact: tokenizer.is_some(), stats: None, ceiling: None };
    let options = ServedOptions { model: known.model.clone(), bearer: known.bearer.clone(), ..options };
    Ok(measure(url, &options, &mut told, &|line| context.report().phase(line))?)
}

/// The first model a server lists; servers that list none take requests without a name.
fn first_model(address: &Address, known: &Foreign) -> Option<String> {
    let wait = Duration::from_secs(10);
    let answer = address.send_as("GET", "/v1/models", None, wait, known.bearer.as_deref()).ok()?.text().ok()?;
    let list: serde_json::Value = serde_json::from_str(&answer).ok()?;
    list["data"][0]["id"].as_str().map(String::from)
}
