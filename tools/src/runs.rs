//! The run in hand: which one it is, and what its records say so far.

use crate::context::Context;
use crate::error::ToolError;
use crate::next::Next;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;

use crit_records::format::{
    AblationBody, BuildBody, CandidateBody, Direction, EvalBody, EvalKind, EvalStatus, Kind, Metric, Outcome, RecordId,
    RunBody, RunId, SealBody, SmokeBody,
};
use crit_records::{RunInfo, Store, Stored};

/// What candidates are compared by.
pub const METRIC: &str = "decode_tok_s";

/// How a candidate is chosen, as recorded.
pub const DECISION_RULE: &str = "crit.decision/1: among the candidates whose evals finished, whose quality passed the \
run's mode and whose speed is not above the ceiling, the one with the highest mean decode_tok_s";

/// The store of the workspace, made if there is none.
///
/// # Errors
/// It cannot be made or opened.
pub fn store(context: &Context) -> Result<Store, ToolError> {
    let workspace = context.workspace()?;
    workspace.prepare()?;
    let actor = match context.client.as_str() {
        "crit-cli" => crit_records::format::Actor::Human,
        _ => crit_records::format::Actor::Agent,
    };
    Ok(Store::create(workspace.root())?.on_behalf_of(actor, context.report().job_id()))
}

/// The newest run.
///
/// # Errors
/// There is none, or the store cannot be read.
pub fn newest(store: &Store) -> Result<RunInfo, ToolError> {
    store.runs()?.pop().ok_or_else(|| {
        ToolError::new(ErrorKind::Input, "there is no run in this workspace yet")
            .with_hint("call `recon` with `model` to begin one")
            .with_next(Next::call("recon").with("model", "MODEL"))
    })
}

/// The newest run, if it is not sealed.
///
/// # Errors
/// There is none, or it is sealed.
pub fn open(store: &Store) -> Result<RunInfo, ToolError> {
    let run = newest(store)?;
    if run.sealed.is_some() {
        return Err(ToolError::new(
            ErrorKind::Check,
            format!("run {} is sealed; nothing can be added to it", run.short),
        )
        .with_hint("call `recon` with `model` to begin a new run")
        .with_next(Next::call("recon").with("model", run.body.model)));
    }
    Ok(run)
}

/// The run for a checkpoint: the open one if it is for this very checkpoint, else a new one.
///
/// # Errors
/// The store cannot be written.
pub fn begin(store: &Store, wanted: RunBody) -> Result<(RunInfo, bool), ToolError> {
    if let Some(run) = store.runs()?.pop()
        && run.sealed.is_none()
        && run.body.checkpoint == wanted.checkpoint
        && run.body.quality_mode == wanted.quality_mode
    {
        return Ok((run, false));
    }
    let id = store.begin_run(wanted)?;
    let run = store.runs()?.into_iter().find(|run| run.id == id);
    run.map(|run| (run, true)).ok_or_else(|| ToolError::new(ErrorKind::Internal, "the new run cannot be found"))
}

/// The metric of runs.
pub fn metric() -> Metric {
    Metric { name: METRIC.into(), unit: "tok/s".into(), direction: Direction::Higher }
}

/// What a run's records say of one candidate.
#[derive(Clone, Debug)]
pub struct CandidateState {
    /// Its name.
    pub name: String,
    /// Its candidate record.
    pub record: RecordId,
    /// Its digest, once built.
    pub digest: Option<Digest>,
    /// The digest of its executable, once built.
    pub executable: Option<Digest>,
    /// Why its build failed.
    pub build_failure: Option<String>,
    /// How smoke ended.
    pub smoke: Option<Outcome>,
    /// Whether it was ablated.
    pub ablated: bool,
    /// Its last finished speed eval.
    pub speed: Option<(RecordId, EvalBody)>,
    /// Its last finished quality eval.
    pub quality: Option<(RecordId, EvalBody, serde_json::Value)>,
    /// Its last eval that did not finish.
    pub eval_failure: Option<String>,
}

/// A run as its records tell it.
pub struct RunState {
    /// The run.
    pub info: RunInfo,
    /// Its records.
    pub records: Vec<Stored>,
    /// Its candidates, in order.
    pub candidates: Vec<CandidateState>,
    /// Its last recon.
    pub recon: Option<RecordId>,
    /// Its last plan.
    pub plan: Option<RecordId>,
    /// Its seal.
    pub seal: Option<SealBody>,
}

impl RunState {
    /// Reads the records of `info`.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn read(store: &Store, info: RunInfo) -> Result<Self, ToolError> {
        let records = store.records(&info.id)?;
        let mut state = Self { info, records: Vec::new(), candidates: Vec::new(), recon: None, plan: None, seal: None };
        for record in &records {
            state.take(record)?;
        }
        state.records = records;
        Ok(state)
    }

    fn take(&mut self, record: &Stored) -> Result<(), ToolError> {
        match record.kind {
            Kind::Recon => self.recon = Some(record.id),
            Kind::Plan => self.plan = Some(record.id),
            Kind::Candidate => self.candidates.push(candidate(record)?),
            Kind::Build => {
                let body: BuildBody = record.body()?;
                if let Some(one) = self.candidates.iter_mut().find(|one| one.record == body.candidate) {
                    one.digest = body.package;
                    one.executable = body.inputs.map(|inputs| inputs.executable);
                    one.build_failure = body.failure;
                }
            }
            Kind::Smoke => {
                let body: SmokeBody = record.body()?;
                if let Some(one) = self.of(&body.candidate) {
                    one.smoke = Some(body.status);
                }
            }
            Kind::Ablation => {
                let body: AblationBody = record.body()?;
                if let Some(one) = self.of(&body.candidate) {
                    one.ablated = true;
                }
            }
            Kind::Eval => self.take_eval(record)?,
            Kind::Seal => self.seal = Some(record.body()?),
            _ => {}
        }
        Ok(())
    }

    fn take_eval(&mut self, record: &Stored) -> Result<(), ToolError> {
        let body: EvalBody = record.body()?;
        let id = record.id;
        let raw = record.record.body.clone();
        let Some(one) = self.of(&body.candidate) else { return Ok(()) };
        match (body.status, body.kind) {
            (EvalStatus::Started, _) => {}
            (EvalStatus::Finished, EvalKind::Speed) => one.speed = Some((id, body)),
            (EvalStatus::Finished, EvalKind::Quality) => one.quality = Some((id, body, raw)),
            _ => one.eval_failure = body.failure,
        }
        Ok(())
    }

    fn of(&mut self, digest: &Digest) -> Option<&mut CandidateState> {
        self.candidates.iter_mut().rev().find(|one| one.digest.as_ref() == Some(digest))
    }

    /// The candidate that `text` names: its name, its digest or the beginning of it; the newest built one without.
    ///
    /// # Errors
    /// None or several are meant.
    pub fn find(&self, text: Option<&str>) -> Result<&CandidateState, ToolError> {
        let built: Vec<&CandidateState> = self.candidates.iter().filter(|one| one.digest.is_some()).collect();
        let Some(text) = text else {
            return built.last().copied().ok_or_else(|| {
                ToolError::new(ErrorKind::Input, "no candidate of this run is built yet")
                    .with_hint("call `build_candidate` first")
                    .with_next(Next::call("build_candidate"))
            });
        };
        let digest = |one: &CandidateState| one.digest.map(|digest| digest.to_string()).unwrap_or_default();
        let mut found: Vec<&CandidateState> = built
            .iter()
            .copied()
            .filter(|one| one.name == text || (text.len() >= 6 && digest(one).starts_with(text)))
            .collect();
        found.dedup_by_key(|one| one.digest);
        match found.as_slice() {
            [.., one] if found.iter().all(|other| other.digest == one.digest) => Ok(one),
            [] => {
                let known: Vec<String> =
                    built.iter().map(|one| format!("{} ({})", one.name, &digest(one)[..12])).collect();
                let hint = match known.is_empty() {
                    true => "call `build_candidate` first".to_string(),
                    false => format!("built candidates: {}", known.join(", ")),
                };
                let text = crate::text::clean(text, 80);
                Err(ToolError::new(ErrorKind::Input, format!("no built candidate of this run is called `{text}`"))
                    .with_hint(hint)
                    .with_next(Next::call("run_status")))
            }
            _ => Err(ToolError::new(ErrorKind::Usage, format!("`{text}` names several candidates"))
                .with_hint("give the whole digest")),
        }
    }
}

fn candidate(record: &Stored) -> Result<CandidateState, ToolError> {
    let body: CandidateBody = record.body()?;
    Ok(CandidateState {
        name: body.name,
        record: record.id,
        digest: None,
        executable: None,
        build_failure: None,
        smoke: None,
        ablated: false,
        speed: None,
        quality: None,
        eval_failure: None,
    })
}

/// The id of the newest run, for a job's inputs.
pub fn tip(context: &Context) -> Option<RunId> {
    let workspace = context.try_workspace()?;
    let store = Store::open(workspace.root()).ok()?;
    store.runs().ok()?.pop().map(|run| run.tip)
}

/// The id of the newest run if it is open, for a job's inputs.
pub fn open_run_of(context: &Context) -> Option<RunId> {
    let workspace = context.try_workspace()?;
    let store = Store::open(workspace.root()).ok()?;
    store.runs().ok()?.pop().filter(|run| run.sealed.is_none()).map(|run| run.id)
}
