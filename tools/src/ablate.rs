//! `ablate`: what each plugin of a candidate gives, by its absence and alone.

use crate::assembly;
use crate::candidate::Candidate;
use crate::context::Context;
use crate::duel::{Arena, Contender, GENERATED, TURNS};
use crate::error::ToolError;
use crate::host::{self, Host};
use crate::judge::{self, Extent};
use crate::next::Next;
use crate::runs::{self, RunState};
use crate::smoke::candidate_digest;
use crate::tool::{Effect, Runs, Tool};
use crit_catalog::package;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::plugin::{Assembly, Manifest};
use crit_eval::decision::{self, Decision, FEWEST_PAIRS};
use crit_eval::quality::{PathKind, gate};
use crit_records::Draft;
use crit_records::format::{AblationBody, AblationRow, Direction, Form, Metric, RowStatus, Variant};
use crit_records::quantity::{Quantity, ppm};
use serde::{Deserialize, Serialize};

/// The figure rows compare.
const METRIC: &str = "session_tok_s";
/// Tokens of each text compared with the reference.
const COMPARED: usize = 64;
/// Paths a row's quality is taken on: those plugins change. All of them are for `eval`.
const TOUCHED: [PathKind; 5] =
    [PathKind::Prompt, PathKind::Decode, PathKind::Batch, PathKind::PrefixCache, PathKind::Verify];

/// The tool.
pub struct Ablate;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The candidate: its digest, the beginning of it, or its name; the newest built one if not given.
    #[serde(default)]
    pub candidate: Option<String>,
    /// Pairs of sessions a row, at least 10. Default 10; twice as many are taken where ten do not say.
    #[serde(default)]
    pub pairs: Option<u32>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The candidate digest.
    pub candidate: String,
    /// Its name.
    pub name: String,
    /// One row a plugin and variant.
    pub rows: Vec<Row>,
    /// The largest effect seen between the candidate and itself, percent: smaller ones mean nothing.
    pub noise_percent: f64,
    /// What a row compares.
    pub about: String,
    /// What to do next.
    pub next: Next,
}

/// A plugin, switched off or alone.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Row {
    /// The plugin.
    pub plugin: String,
    /// `off`: the candidate without it, against the candidate. `alone`: only it, against no plugins at all.
    pub variant: Variant,
    /// FASTER, SLOWER, SAME or AMBIGUOUS: the variant against what it is compared with; or NOT_APPLICABLE.
    pub outcome: String,
    /// Change of session tokens/s, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_percent: Option<f64>,
    /// Its interval: at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_percent: Option<f64>,
    /// Its interval: at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_percent: Option<f64>,
    /// Mean KLD of the variant on its worst path, nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_kld: Option<f64>,
    /// Why it is not applicable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Tool for Ablate {
    const NAME: &'static str = "ablate";
    const TITLE: &'static str = "Ablate a candidate's plugins";
    const DESCRIPTION: &'static str = "Ablation study of an inference engine candidate: benchmark it with each plugin \
        switched off and with each plugin alone, as paired sessions in fresh processes, with the change in tokens/s, its interval and the \
        quality. Shows which optimization carries the speedup. Needs a passed smoke test.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 4 * 3600, inline_without_workspace: false };
    type Params = Params;
    type Output = Output;

    fn inputs(context: &Context, params: &Params) -> Result<Digest, ToolError> {
        candidate_digest(context, params.candidate.as_deref())
    }

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let store = runs::store(context)?;
        let state = RunState::read(&store, runs::open(&store)?)?;
        let chosen = state.find(params.candidate.as_deref())?;
        let digest = chosen.digest.unwrap_or(chosen.record);
        let candidate = Candidate::load(context.workspace()?, &digest)?;
        let pairs = params.pairs.map_or(FEWEST_PAIRS, |pairs| pairs as usize).max(FEWEST_PAIRS);
        let _alone = context.measure("ablate")?;
        let study = Study::new(context, &candidate, pairs)?;
        let (rows, noise) = study.rows()?;
        let body = AblationBody {
            candidate: digest,
            metric: Metric { name: METRIC.into(), unit: "tok/s".into(), direction: Direction::Higher },
            rows: rows.iter().map(recorded).collect::<Result<_, _>>()?,
        };
        store.append(&state.info.id, Draft::new(&body)?.about(chosen.name.clone(), digest))?;
        Ok(Output {
            candidate: digest.to_string(),
            name: chosen.name.clone(),
            rows: rows.into_iter().map(|measured| measured.row).collect(),
            noise_percent: percent(noise.exp_m1()),
            about: format!("sessions of {TURNS} turns, {GENERATED} greedy tokens each, through the engine protocol"),
            next: Next::call("eval").with("candidate", digest.to_string()),
        })
    }
}

/// A row with what only the record keeps.
struct MeasuredRow {
    row: Row,
    tok_s: Option<f64>,
    decision: Option<Decision>,
}

fn percent(share: f64) -> f64 {
    (share * 1e4).round() / 100.0
}

fn recorded(measured: &MeasuredRow) -> Result<AblationRow, ToolError> {
    let row = &measured.row;
    let wrong = |error: crit_records::quantity::QuantityError| ToolError::new(ErrorKind::Internal, error.to_string());
    let blank = AblationRow {
        plugin: row.plugin.clone(),
        variant: row.variant,
        status: RowStatus::NotApplicable,
        reason: row.reason.clone(),
        value: None,
        delta_ppm: None,
        interval_ppm: None,
        quality: None,
    };
    let Some(decision) = &measured.decision else { return Ok(blank) };
    Ok(AblationRow {
        status: RowStatus::Measured,
        value: measured.tok_s.map(|tok_s| Quantity::of(tok_s, 3, "tok/s")).transpose().map_err(wrong)?,
        delta_ppm: Some(ppm(decision.speedup).map_err(wrong)?),
        interval_ppm: Some([ppm(decision.low).map_err(wrong)?, ppm(decision.high).map_err(wrong)?]),
        quality: row.mean_kld.map(|kld| Quantity::of(kld, 9, "nat")).transpose().map_err(wrong)?,
        ..blank
    })
}

struct Study<'a> {
    context: &'a Context,
    candidate: &'a Candidate,
    pairs: usize,
    own: Vec<Manifest>,
    arena: Arena<'a>,
    seed: u64,
}

impl<'a> Study<'a> {
    fn new(context: &'a Context, candidate: &'a Candidate, pairs: usize) -> Result<Self, ToolError> {
        let root = context.workspace()?.root();
        let own = match candidate.form {
            Form::Package => package::plugins(root)?.into_iter().map(|own| own.manifest).collect(),
            _ => Vec::new(),
        };
        let arena = Arena::new(context, &candidate.assembly.model)?;
        // The candidate is frozen: what is drawn now it cannot have seen.
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        Ok(Self { context, candidate, pairs, own, arena, seed })
    }

    fn rows(&self) -> Result<(Vec<MeasuredRow>, f64), ToolError> {
        let plugins: Vec<String> = self.candidate.assembly.plugins.iter().map(|plugin| plugin.name.clone()).collect();
        if plugins.is_empty() {
            return Ok((Vec::new(), 0.0));
        }
        let full = &self.candidate.assembly;
        let bare = Assembly { plugins: Vec::new(), ..full.clone() };
        self.context.report().phase("ablate: the candidate against itself");
        let noise = self.arena.noise(&self.contender(full, "full")?, self.pairs, self.seed)?;
        let mut rows = Vec::new();
        let total = plugins.len() as u64 * 2;
        for plugin in &plugins {
            let variants = [(Variant::Off, full.without(plugin), full), (Variant::Alone, full.only(plugin), &bare)];
            for (variant, changed, base) in variants {
                let name = if variant == Variant::Off { "off" } else { "alone" };
                self.context.report().phase(&format!("ablate: {plugin} {name}"));
                self.context.report().progress(rows.len() as u64, total);
                rows.push(self.row(plugin, variant, &changed, base, noise)?);
            }
        }
        Ok((together(rows, noise)?, noise))
    }

    fn row(
        &self,
        plugin: &str,
        variant: Variant,
        changed: &Assembly,
        base: &Assembly,
        noise: f64,
    ) -> Result<MeasuredRow, ToolError> {
        let blank = Row {
            plugin: plugin.into(),
            variant,
            outcome: "NOT_APPLICABLE".into(),
            delta_percent: None,
            low_percent: None,
            high_percent: None,
            mean_kld: None,
            reason: None,
        };
        if let Err(error) = assembly::check(changed.clone(), &self.own) {
            return Ok(MeasuredRow { row: Row { reason: Some(error.message), ..blank }, tok_s: None, decision: None });
        }
        let (a, b) = (self.contender(base, "base")?, self.contender(changed, "changed")?);
        let seed = self.seed ^ Digest::of(format!("{plugin} {variant:?}").as_bytes()).bytes()[0] as u64;
        let duelled = self.arena.compare((&a, &b), self.pairs, noise, seed)?;
        let (decision, mean_kld) = (duelled.decision, self.kld(changed)?);
        let mut times: Vec<f64> = decision.pairs.iter().map(|pair| pair.b_s).collect();
        times.sort_by(f64::total_cmp);
        let row = Row {
            outcome: decision.outcome.word().into(),
            delta_percent: Some(percent(decision.speedup)),
            low_percent: Some(percent(decision.low)),
            high_percent: Some(percent(decision.high)),
            mean_kld,
            ..blank
        };
        let tok_s = times.get(times.len() / 2).map(|s| duelled.tokens as f64 / s);
        Ok(MeasuredRow { row, tok_s, decision: Some(decision) })
    }

    fn contender(&self, assembly: &Assembly, name: &str) -> Result<Contender, ToolError> {
        let config = host::write_config(self.context, assembly, &format!("ablate-{name}-{}", std::process::id()))?;
        let mut command = host::command(self.context, self.candidate, &format!("ablate-{name}"))?;
        command.config = Some(config);
        Ok(Contender { command })
    }

    fn kld(&self, assembly: &Assembly) -> Result<Option<f64>, ToolError> {
        let mut host = Host::start(&self.contender(assembly, "quality")?.command)?;
        let variant = Candidate { assembly: assembly.clone(), ..self.candidate.clone() };
        let extent = Extent::rows(COMPARED, Some(TOUCHED.to_vec()), self.seed);
        let quality = judge::quality(self.context, &variant, &mut host, &extent)?;
        Ok(gate::worst(&quality.paths).and_then(|path| path.kld.as_ref()).map(|kld| kld.mean))
    }
}

/// Judges the rows as one table, so that the more rows there are the clearer each must be.
fn together(mut rows: Vec<MeasuredRow>, noise: f64) -> Result<Vec<MeasuredRow>, ToolError> {
    let decisions: Vec<Decision> = rows.iter().filter_map(|row| row.decision.clone()).collect();
    let judged = decision::holm(decisions, noise)?;
    for (row, decision) in rows.iter_mut().filter(|row| row.decision.is_some()).zip(judged) {
        row.row.outcome = decision.outcome.word().into();
        row.decision = Some(decision);
    }
    Ok(rows)
}
