//! `run_status`: where the run stands, what is farthest from physics, what to do next.

use crate::context::Context;
use crate::error::ToolError;
use crate::jobs;
use crate::next::Next;
use crate::runs::{self, CandidateState, RunState};
use crate::tool::{Effect, Runs, Tool};
use crit_records::Store;
use crit_records::format::{EvalBody, Outcome};
use serde::{Deserialize, Serialize};

/// Most candidates of an answer.
const SHOWN: usize = 12;

/// The tool.
pub struct RunStatus;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The run: its id or the beginning of it; the newest if not given.
    #[serde(default)]
    pub run: Option<String>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// Its candidates, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Row>,
    /// The candidate that leads, by the run's rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
    /// What is farthest from what the machine allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub biggest_gap: Option<String>,
    /// Jobs that are not done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live_jobs: Vec<String>,
    /// What to do next.
    pub next: Next,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Run {
    /// Its id, short.
    pub id: String,
    /// What it is for.
    pub goal: String,
    /// The model.
    pub model: String,
    /// Quality mode.
    pub quality: String,
    /// Records it has.
    pub records: u64,
    /// The candidate it sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
}

/// A candidate.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// How far it came: `build failed`, `built`, `smoke failed`, `smoked`, `ablated`, `measured`.
    pub state: String,
    /// Figures of its last evals, as recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
    /// The verdict on its quality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<String>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Tool for RunStatus {
    const NAME: &'static str = "run_status";
    const TITLE: &'static str = "Where the run stands";
    const DESCRIPTION: &'static str = "Status of the engine optimization run: candidates with their benchmark figures and \
        quality verdicts, the best so far, the biggest gap to the roofline, and the suggested next call. Start here \
        after a break.";
    const EFFECT: Effect = Effect::Reads;
    const RUNS: Runs = Runs::Inline;
    type Params = Params;
    type Output = Output;

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let workspace = context.workspace()?;
        let live_jobs = live(context)?;
        if !workspace.records().exists() && params.run.is_none() {
            return Ok(Output {
                run: None,
                candidates: Vec::new(),
                best: None,
                biggest_gap: None,
                live_jobs,
                next: Next::call("recon").with("model", "MODEL"),
            });
        }
        let store = Store::open(workspace.root())?;
        let info = match &params.run {
            Some(text) => {
                let id = store.find_run(text)?;
                store.runs()?.into_iter().find(|run| run.id == id).map_or_else(|| runs::newest(&store), Ok)?
            }
            None => runs::newest(&store)?,
        };
        let state = RunState::read(&store, info)?;
        Ok(describe(&state, live_jobs))
    }
}

fn live(context: &Context) -> Result<Vec<String>, ToolError> {
    let jobs = jobs::Store::of(context.workspace()?).list();
    let live = jobs.iter().filter(|job| !job.state.state.is_final());
    Ok(live.map(|job| format!("{} {} ({})", job.id, job.request.tool, job.state.phase)).collect())
}

fn describe(state: &RunState, live_jobs: Vec<String>) -> Output {
    let best = leader(state);
    let skip = state.candidates.len().saturating_sub(SHOWN);
    Output {
        run: Some(Run {
            id: state.info.short.clone(),
            goal: state.info.body.goal.clone(),
            model: state.info.body.model.clone(),
            quality: state.info.body.quality_mode.clone(),
            records: state.info.records,
            sealed: state.info.sealed.map(|digest| digest.to_string()),
        }),
        candidates: state.candidates.iter().skip(skip).map(row).collect(),
        best: best.map(|one| one.name.clone()),
        biggest_gap: best.and_then(gap),
        next: next(state, best),
        live_jobs,
    }
}

/// The value of a summary row of an eval.
pub fn figure(body: &EvalBody, series: &str) -> Option<f64> {
    body.summary.iter().find(|row| row.series == series).map(|row| row.value.value())
}

/// The quality verdict recorded with an eval: a field `verdict` of its body.
pub fn verdict(one: &CandidateState) -> Option<&str> {
    one.quality.as_ref().and_then(|(_, _, raw)| raw.get("verdict")?.as_str())
}

/// The measured candidate that leads: quality passed, highest decode speed.
pub fn leader(state: &RunState) -> Option<&CandidateState> {
    let fit = state.candidates.iter().filter(|one| verdict(one) == Some("pass"));
    let speed = |one: &CandidateState| one.speed.as_ref().and_then(|(_, body)| figure(body, runs::METRIC));
    fit.filter_map(|one| Some((speed(one)?, one))).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
}

fn gap(one: &CandidateState) -> Option<String> {
    let (_, body) = one.speed.as_ref()?;
    let shares = ["decode_share", "prefill_share"];
    let found = shares.iter().filter_map(|name| Some((figure(body, name)?, *name)));
    let (share, name) = found.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let phase = name.trim_end_matches("_share");
    // Summary shares are recorded in percent.
    Some(format!("{phase} of {} reaches {share:.0} % of what the machine allows", one.name))
}

fn row(one: &CandidateState) -> Row {
    let state = match (&one.build_failure, one.digest, one.smoke) {
        (Some(_), _, _) => "build failed",
        (None, None, _) => "not built",
        (None, Some(_), None) => "built",
        (None, Some(_), Some(Outcome::Passed)) if one.speed.is_some() => "measured",
        (None, Some(_), Some(Outcome::Passed)) if one.ablated => "ablated",
        (None, Some(_), Some(Outcome::Passed)) => "smoked",
        (None, Some(_), Some(_)) => "smoke failed",
    };
    let figures = one.speed.iter().map(|(_, body)| body).chain(one.quality.iter().map(|(_, body, _)| body));
    Row {
        name: one.name.clone(),
        candidate: one.digest.map(|digest| digest.to_string()),
        state: state.into(),
        figures: figures.flat_map(|body| &body.summary).map(|row| format!("{} {}", row.series, row.value)).collect(),
        quality: verdict(one).map(String::from),
        failure: one
            .build_failure
            .clone()
            .or_else(|| one.eval_failure.clone())
            .map(|text| crate::text::clean(&text, 300)),
    }
}

fn next(state: &RunState, best: Option<&CandidateState>) -> Next {
    if state.info.sealed.is_some() {
        return Next::call("recon").with("model", state.info.body.model.clone());
    }
    if state.plan.is_none() {
        return Next::call("plan").with("hypothesis", "base engine, no plugins: the starting point");
    }
    let Some(last) = state.candidates.last() else { return Next::call("build_candidate") };
    let digest = last.digest.map(|digest| digest.to_string());
    match (digest, last.smoke) {
        (None, _) => Next::call("build_candidate"),
        (Some(digest), None) => Next::call("smoke").with("candidate", digest),
        (Some(digest), Some(Outcome::Passed)) if last.speed.is_none() || last.quality.is_none() => {
            Next::call("eval").with("candidate", digest)
        }
        (Some(_), Some(Outcome::Passed)) if state.candidates.len() > 1 => match best.and_then(|one| one.digest) {
            Some(digest) => Next::call("seal").with("candidate", digest.to_string()),
            None => Next::call("inference_search"),
        },
        _ => Next::call("inference_search").with("query", "decode"),
    }
}
