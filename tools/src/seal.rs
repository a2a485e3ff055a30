//! `seal`: decide for a candidate and close the run.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::duel::{Arena, Contender};
use crate::error::ToolError;
use crate::host;
use crate::next::Next;
use crate::run_status::{figure, leader, verdict};
use crate::runs::{self, CandidateState, RunState};
use crate::tool::{Effect, Runs, Tool};
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_eval::decision::{Decision, FEWEST_PAIRS, Outcome as Verdict};
use crit_records::format::{DecisionBody, Exclusion, Outcome, RecordId, SealBody, SelectionBody};
use crit_records::quantity::ppm;
use crit_records::{Draft, Store};
use serde::{Deserialize, Serialize};

/// Recorded figures closer than this are measured again in pairs: what a session of evals differs by from another.
const CONTESTED: f64 = 0.1;

/// The tool.
pub struct Seal;

/// Arguments.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The whole digest of the candidate, 64 hex digits.
    pub candidate: String,
    /// Why this one, in words; needed when another leads by the run's rule.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The sealed candidate.
    pub candidate: String,
    /// Its name.
    pub name: String,
    /// The run.
    pub run: String,
    /// The seal's record: hold it elsewhere and no one can change the run unseen.
    pub seal: String,
    /// Records under the seal.
    pub records: u64,
    /// How far it leads the next best, in percent; absent if it is the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_percent: Option<f64>,
    /// How to serve it.
    pub serve: String,
    /// How anyone can check the run.
    pub verify: String,
    /// What to do next.
    pub next: Next,
}

impl Tool for Seal {
    const NAME: &'static str = "seal";
    const TITLE: &'static str = "Seal a candidate";
    const DESCRIPTION: &'static str = "Seal the winning inference engine candidate: record the decision against all other \
        candidates and close the run under one hash. Needs the exact digest, a passed smoke test and finished speed \
        and quality evals. After it, `crit serve` serves the candidate and nothing can be added to the run.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 4 * 3600, inline_without_workspace: false };
    type Params = Params;
    type Output = Output;

    fn inputs(context: &Context, _: &Params) -> Result<Digest, ToolError> {
        let store = runs::store(context)?;
        let run = runs::newest(&store)?;
        // A sealed run has one answer; an open one depends on all it says so far.
        Ok(if run.sealed.is_some() { run.id } else { run.tip })
    }

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let store = runs::store(context)?;
        let digest = parse(&params.candidate, &store)?;
        let run = runs::newest(&store)?;
        let state = RunState::read(&store, run)?;
        if state.info.sealed == Some(digest) {
            return answer(&store, &state, digest, None);
        }
        let state = RunState::read(&store, runs::open(&store)?)?;
        let winner = state.find(Some(&digest.to_string()))?;
        require(winner, &digest)?;
        let candidate = Candidate::load(context.workspace()?, &digest)?;
        if candidate.executable_now(&context.program)? != candidate.parts.executable {
            return Err(ToolError::new(
                ErrorKind::Check,
                "the executable is not the one this candidate was built with",
            )
            .with_hint("crit or the engine was rebuilt since: call `build_candidate` again and measure that")
            .with_next(Next::call("build_candidate")));
        }
        close_open_evals(&store, &state)?;
        let margin = record(context, &store, &state, winner, digest, params.reason.as_deref())?;
        let seal = SealBody {
            candidate: digest,
            executable: candidate.parts.executable,
            tip: None,
            count: 0,
            merkle_root: None,
            cost: None,
            open_failures: Vec::new(),
        };
        store.append(&state.info.id, Draft::new(&seal)?.about(winner.name.clone(), digest))?;
        let sealed = RunState::read(&store, runs::newest(&store)?)?;
        answer(&store, &sealed, digest, margin)
    }
}

fn parse(text: &str, store: &Store) -> Result<Digest, ToolError> {
    Digest::parse(text).ok_or_else(|| {
        let newest = runs::newest(store).ok().and_then(|run| RunState::read(store, run).ok());
        let best = newest.as_ref().and_then(leader).and_then(|one| one.digest);
        let error = ToolError::new(ErrorKind::Usage, "`candidate` must be the whole digest, 64 hex digits");
        match best {
            Some(best) => error
                .with_hint(format!("the leading candidate is {best}"))
                .with_next(Next::call("seal").with("candidate", best.to_string())),
            None => error.with_hint("`run_status` lists the candidates").with_next(Next::call("run_status")),
        }
    })
}

/// What a seal stands for must have been measured.
fn require(winner: &CandidateState, digest: &Digest) -> Result<(), ToolError> {
    let refuse = |what: &str, tool: &str| {
        Err(ToolError::new(ErrorKind::Check, format!("candidate {} {what}", digest.short()))
            .with_hint(format!("call `{tool}` first"))
            .with_next(Next::call(tool).with("candidate", digest.to_string())))
    };
    if winner.smoke != Some(Outcome::Passed) {
        return refuse("has not passed smoke", "smoke");
    }
    if winner.speed.is_none() || winner.quality.is_none() {
        return refuse("has no finished speed and quality eval", "eval");
    }
    match verdict(winner) {
        Some("pass") => Ok(()),
        other => Err(ToolError::new(
            ErrorKind::Check,
            format!("the quality of candidate {} is `{}`, not `pass`", digest.short(), other.unwrap_or("unknown")),
        )
        .with_hint("seal a candidate whose quality passed, or plan one that mends it")
        .with_next(Next::call("run_status"))),
    }
}

/// An eval whose process was killed never said how it ended; a run is not sealed over it in silence.
fn close_open_evals(store: &Store, state: &RunState) -> Result<(), ToolError> {
    for intent in store.open_intents(&state.info.id)? {
        let started: crit_records::format::EvalBody = intent.body()?;
        let body = crit_records::format::EvalBody {
            status: crit_records::format::EvalStatus::Aborted,
            failure: Some("its process ended before it did".into()),
            samples: None,
            summary: Vec::new(),
            ..started
        };
        let draft = Draft::new(&body)?.link(crit_records::format::REL_INTENT, intent.id);
        store.append(&state.info.id, draft)?;
    }
    Ok(())
}

/// Records decision and selection; returns the margin over the next best as a share.
fn record(
    context: &Context,
    store: &Store,
    state: &RunState,
    winner: &CandidateState,
    digest: Digest,
    reason: Option<&str>,
) -> Result<Option<f64>, ToolError> {
    let speed = |one: &CandidateState| one.speed.as_ref().and_then(|(_, body)| figure(body, runs::METRIC));
    let mut considered: Vec<(Digest, f64)> = Vec::new();
    let mut excluded: Vec<Exclusion> = Vec::new();
    let mut inputs: Vec<RecordId> = Vec::new();
    for one in &state.candidates {
        let Some(candidate) = one.digest else { continue };
        let fit = verdict(one) == Some("pass") && one.smoke == Some(Outcome::Passed);
        inputs.extend(one.speed.iter().map(|(id, _)| *id).chain(one.quality.iter().map(|(id, ..)| *id)));
        match (fit, speed(one)) {
            (true, Some(value)) => considered.push((candidate, value)),
            _ => excluded.push(Exclusion { candidate, reason: why_excluded(one) }),
        }
    }
    considered.sort_by(|a, b| b.1.total_cmp(&a.1));
    let best = considered.first().map(|(best, _)| *best);
    if best != Some(digest) && reason.is_none_or(|reason| reason.trim().is_empty()) {
        let best = best.map(|best| best.to_string()).unwrap_or_default();
        return Err(ToolError::new(ErrorKind::Check, "another candidate leads by the run's rule")
            .with_hint("seal the leading one, or say in `reason` why this one")
            .with_next(Next::call("seal").with("candidate", best)));
    }
    let own = speed(winner).unwrap_or_default();
    let second = considered.iter().find(|(other, _)| *other != digest);
    let margin = second.map(|(_, value)| own / value - 1.0).filter(|margin| margin.is_finite());
    let contest = match second {
        Some((other, _)) if margin.is_none_or(|margin| margin.abs() < CONTESTED) => {
            Some(contest(context, digest, *other)?)
        }
        _ => None,
    };
    let unexplained = reason.is_none_or(|reason| reason.trim().is_empty());
    if let (Some(contest), Some((other, _)), true) = (&contest, second, unexplained)
        && contest.decision.outcome == Verdict::Slower
    {
        return Err(ToolError::new(
            ErrorKind::Check,
            format!("measured again in pairs, this candidate is slower than {}: {}", other.short(), contest.words()),
        )
        .with_hint("seal the faster one, or say in `reason` why this one")
        .with_next(Next::call("seal").with("candidate", other.to_string())));
    }
    let decision = DecisionBody {
        question: "which candidate is sealed?".into(),
        options: considered.iter().map(|(digest, _)| digest.to_string()).collect(),
        rule: runs::DECISION_RULE.into(),
        inputs,
        outcome: digest.to_string(),
        reason: match (reason, &contest) {
            (Some(reason), _) => reason.into(),
            (None, Some(contest)) => {
                format!("it leads by the rule; against the next best in pairs: {}", contest.words())
            }
            (None, None) => "it leads by the rule".into(),
        },
    };
    store.append(&state.info.id, Draft::new(&decision)?)?;
    let selection = SelectionBody {
        considered: considered.iter().map(|(digest, _)| *digest).collect(),
        excluded,
        rule: runs::DECISION_RULE.into(),
        winner: digest,
        runner_up: second.map(|(digest, _)| *digest),
        margin_ppm: margin.and_then(|margin| ppm(margin).ok()),
        noise_ppm: contest.and_then(|contest| ppm(contest.noise).ok()),
        holdout: Vec::new(),
    };
    store.append(&state.info.id, Draft::new(&selection)?)?;
    Ok(margin)
}

/// The winner measured again against the next best, on content neither has seen: the best of a search is also the
/// luckiest.
struct Contest {
    decision: Decision,
    noise: f64,
}

impl Contest {
    fn words(&self) -> String {
        let Decision { outcome, speedup, low, high, pairs, .. } = &self.decision;
        let percent = |share: f64| share * 100.0;
        format!(
            "{} ({:+.1} %, {:+.1} to {:+.1} %, {} pairs)",
            outcome.word(),
            percent(*speedup),
            percent(*low),
            percent(*high),
            pairs.len()
        )
    }
}

fn contest(context: &Context, winner: Digest, other: Digest) -> Result<Contest, ToolError> {
    let _alone = context.measure("seal")?;
    context.report().phase("seal: the winner against the next best");
    let load = |digest: &Digest, name: &str| -> Result<(Candidate, Contender), ToolError> {
        let candidate = Candidate::load(context.workspace()?, digest)?;
        let command = host::command(context, &candidate, name)?;
        Ok((candidate, Contender { command }))
    };
    let ((candidate, winner), (_, other)) = (load(&winner, "seal-winner")?, load(&other, "seal-other")?);
    let arena = Arena::new(context, &candidate.assembly.model)?;
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let noise = match arena.known_noise() {
        (_, 0) => arena.noise(&winner, FEWEST_PAIRS, seed)?,
        (noise, _) => noise,
    };
    let decision = arena.compare((&other, &winner), FEWEST_PAIRS, noise, !seed)?.decision;
    Ok(Contest { decision, noise })
}

fn why_excluded(one: &CandidateState) -> String {
    match (one.smoke, one.speed.is_some(), verdict(one)) {
        (None, _, _) => "not smoke-tested".into(),
        (Some(Outcome::Passed), false, _) => "not measured".into(),
        (Some(Outcome::Passed), true, Some("pass")) => "no speed figure".into(),
        (Some(Outcome::Passed), true, other) => format!("quality is {}", other.unwrap_or("not measured")),
        (Some(_), _, _) => "smoke failed".into(),
    }
}

fn answer(store: &Store, state: &RunState, digest: Digest, margin: Option<f64>) -> Result<Output, ToolError> {
    let one = state.find(Some(&digest.to_string()))?;
    let seal = store.latest(&state.info.id, crit_records::format::Kind::Seal)?;
    let seal = seal.map(|seal| seal.id.to_string()).unwrap_or_default();
    Ok(Output {
        candidate: digest.to_string(),
        name: one.name.clone(),
        run: state.info.short.clone(),
        seal,
        records: state.info.records,
        margin_percent: margin.map(|margin| (margin * 1000.0).round() / 10.0),
        serve: format!("crit serve --candidate {digest}"),
        verify: format!("crit run verify {}", state.info.short),
        next: Next::call("run_status"),
    })
}
