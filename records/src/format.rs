//! Everything that is on disk, apart from who reads and writes it: the envelope, the kinds and their bodies.
//!
//! A kind's schema is `crit.<kind>/v1`. Fields may be added under one version; a reader ignores fields it does not know unless
//! the record lists them in `critical`. Records are never rewritten, so nothing here may become stricter about old records:
//! a change of meaning is a new version. Numbers are whole, or text with a unit ([`Quantity`]); absent is left out, never
//! null. A body's status decides which of its fields may exist ([`Body::check`]).

use crate::candidate::CandidateParts;
use crate::quantity::Quantity;
use crit_core::digest::Digest;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// The id of a record: the digest of its canonical bytes under the record domain.
pub type RecordId = Digest;
/// The id of a run: the id of its first record.
pub type RunId = Digest;

/// The version of every kind that this crate writes.
pub const VERSION: u32 = 1;
/// Media type of canonical JSON attachments without a narrower type.
pub const MEDIA_JSON: &str = "application/json";
/// Media type of a source or checkpoint manifest.
pub const MEDIA_MANIFEST: &str = "application/vnd.crit.manifest.v1+json";
/// Media type of raw samples.
pub const MEDIA_SAMPLES: &str = "application/vnd.crit.samples.v1+json";
/// Media type of plain text, such as logs.
pub const MEDIA_TEXT: &str = "text/plain; charset=utf-8";
/// Media type of bytes with no stated meaning.
pub const MEDIA_BYTES: &str = "application/octet-stream";

/// The `rel` of a reference to the plan a candidate follows.
pub const REL_PLAN: &str = "plan";
/// The `rel` of a reference to the intent that a result closes.
pub const REL_INTENT: &str = "intent";
/// The `rel` of a reference to the run that a run amends; the only one that may leave the run.
pub const REL_AMENDS: &str = "amends";

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $body:ty;)+) => {
        /// What a record says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Kind { $($(#[$doc])* $variant,)+ }

        impl Kind {
            /// All kinds, sorted by name.
            pub const ALL: &[Kind] = &[$(Kind::$variant),+];

            /// Its name, as in file names and schemas.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name),+ }
            }

            /// Whether the typed body of this kind has the field `field` of `body`.
            pub fn understands(self, body: &Value, field: &str) -> bool {
                match self { $(Kind::$variant => has_field::<$body>(body, field)),+ }
            }

            /// Why `body` is not a body of this kind, if it is not.
            pub fn check_body(self, body: &Value) -> Result<(), String> {
                match self { $(Kind::$variant => check_as::<$body>(body)),+ }
            }
        }

        $(impl Body for $body { const KIND: Kind = Kind::$variant; fn check(&self) -> Result<(), String> { self.rules() } })+
    };
}

/// The typed body of one kind.
pub trait Body: Serialize + DeserializeOwned {
    /// The kind it belongs to.
    const KIND: Kind;
    /// What its own status forbids, if anything: the rules that need no other record.
    fn check(&self) -> Result<(), String>;
}

fn has_field<B: Body>(body: &Value, field: &str) -> bool {
    let typed = B::deserialize(body).ok().and_then(|typed| serde_json::to_value(typed).ok());
    typed.is_some_and(|typed| typed.get(field).is_some())
}

fn check_as<B: Body>(body: &Value) -> Result<(), String> {
    B::deserialize(body).map_err(|e| e.to_string())?.check()
}

kinds! {
    /// Each plugin switched off and alone, against the whole candidate.
    Ablation = "ablation", AblationBody;
    /// Where a tip of this run was deposited outside this store.
    Anchor = "anchor", AnchorBody;
    /// The build of a candidate into something that runs.
    Build = "build", BuildBody;
    /// A frozen source tree and the plan it follows.
    Candidate = "candidate", CandidateBody;
    /// What the agents' work cost.
    Cost = "cost", CostBody;
    /// A choice with its options and inputs.
    Decision = "decision", DecisionBody;
    /// A measurement, or the intent to make one.
    Eval = "eval", EvalBody;
    /// What is tried next and what it should bring.
    Plan = "plan", PlanBody;
    /// What the machine is and can do.
    Recon = "recon", ReconBody;
    /// What was lost when a damaged run was rescued.
    Recovery = "recovery", RecoveryBody;
    /// The first record of every run.
    Run = "run", RunBody;
    /// The last word of a run.
    Seal = "seal", SealBody;
    /// Which candidate won, out of which.
    Selection = "selection", SelectionBody;
    /// A signature over a seal.
    Signature = "signature", SignatureBody;
    /// Does the candidate work at all.
    Smoke = "smoke", SmokeBody;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Kind {
    /// The kind called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Its schema in the version written today.
    pub fn schema(self) -> String {
        format!("crit.{}/v{VERSION}", self.name())
    }

    /// The kind that `schema` names, or why it cannot be read.
    pub fn of_schema(schema: &str) -> Result<Self, String> {
        let not_ours = || format!("`{schema}` is not a schema of crit");
        let (name, version) = schema.strip_prefix("crit.").and_then(|s| s.split_once("/v")).ok_or_else(not_ours)?;
        let kind = Self::parse(name).ok_or_else(|| format!("this crit knows no record kind `{name}`"))?;
        let version: u32 = version.parse().map_err(|_| not_ours())?;
        if version != VERSION {
            return Err(format!("`{schema}` is version {version}; this crit reads version {VERSION}"));
        }
        Ok(kind)
    }

    /// Whether a record of this kind may follow the seal.
    pub const fn may_follow_seal(self) -> bool {
        matches!(self, Self::Anchor | Self::Recovery | Self::Signature)
    }
}

/// The envelope that all kinds share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// `crit.<kind>/v<version>`.
    pub schema: String,
    /// The run. Left out of the first record, whose id the run has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Place in the run, from 0.
    pub seq: u64,
    /// The record before this one. Left out of the first record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<RecordId>,
    /// The system clock in UTC, a claim: `2026-11-30T12:00:00Z`.
    pub at: String,
    /// The monotonic clock of boot `boot`, for durations.
    pub mono: Quantity,
    /// The boot that `mono` counts from.
    pub boot: String,
    /// Who wrote it.
    pub writer: Writer,
    /// What the record is about, by digest.
    #[serde(default)]
    pub subject: Vec<Subject>,
    /// Records it rests on.
    #[serde(default)]
    pub refs: Vec<Link>,
    /// Attachments.
    #[serde(default)]
    pub blobs: Vec<BlobRef>,
    /// Fields that a reader must understand or refuse the record.
    #[serde(default)]
    pub critical: Vec<String>,
    /// The body of the kind.
    pub body: Value,
}

/// Fields of the envelope that this crate understands; others in `critical` make a record unreadable.
pub const KNOWN_ENVELOPE: &[&str] =
    &["at", "blobs", "body", "boot", "critical", "mono", "prev", "refs", "run", "schema", "seq", "subject", "writer"];

/// Who wrote a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Writer {
    /// The crit version.
    pub crit: String,
    /// The digest of the executable that wrote.
    pub executable: Digest,
    /// On whose behalf.
    pub actor: Actor,
    /// The agent's session, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// On whose behalf a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A coding agent.
    Agent,
    /// A person.
    Human,
    /// Continuous integration.
    Ci,
}

/// Something a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// Its digest.
    pub digest: Digest,
}

/// A reference to another record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// What the other record is to this one: `plan`, `intent`, `recon`, `evidence`, `amends`, …
    pub rel: String,
    /// The other record.
    pub id: RecordId,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlobRef {
    /// Its name within the record.
    pub name: String,
    /// The digest of its bytes.
    pub sha256: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Its media type.
    pub media: String,
}

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// What a run tries to improve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metric {
    /// Its name, such as `decode_tok_s`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Which way is better.
    pub direction: Direction,
}

/// Body of `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunBody {
    /// What is to be reached, in words.
    pub goal: String,
    /// The model, as the user named it.
    pub model: String,
    /// The manifest id of the checkpoint.
    pub checkpoint: Digest,
    /// The class of the machine, such as `x86_64-avx2 2 cores`.
    pub machine: String,
    /// What is compared.
    pub metric: Metric,
    /// The rule that decides between candidates.
    pub decision_rule: String,
    /// The quality mode: `speed` or `preserve`.
    pub quality_mode: String,
    /// How much may be spent, each as a quantity with its unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<Quantity>,
    /// A salted digest of the held-out seeds, revealed by the evals that use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds_commitment: Option<Digest>,
    /// The digest of the policy file in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Digest>,
    /// Makes runs with equal goals distinct. Filled by the store when empty.
    #[serde(default)]
    pub nonce: String,
}

impl RunBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.nonce.is_empty(), "`nonce` is empty")
    }
}

/// Body of `recon`. Facts beyond these may be added as further fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReconBody {
    /// The processor's name.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The operating system and kernel.
    pub os: String,
    /// Accelerators, possibly none.
    #[serde(default)]
    pub accelerators: Vec<Accelerator>,
    /// Measured limits of the machine.
    #[serde(default)]
    pub limits: Vec<MeasuredLimit>,
}

impl ReconBody {
    fn rules(&self) -> Result<(), String> {
        require(self.cores > 0, "`cores` is 0")
    }
}

/// An accelerator of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accelerator {
    /// Its name.
    pub name: String,
    /// Its architecture, such as `sm_90`.
    pub arch: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The driver's version.
    pub driver: String,
}

/// A measured limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredLimit {
    /// What is limited, such as `read_bandwidth`.
    pub name: String,
    /// Where: a memory level, a dtype; empty when there is only one place.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub level: String,
    /// The limit.
    pub value: Quantity,
    /// The spread of its repeats in parts per million.
    pub spread_ppm: i64,
}

/// Body of `plan`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanBody {
    /// What is believed, in words.
    pub hypothesis: String,
    /// What it should bring.
    #[serde(default)]
    pub predictions: Vec<Prediction>,
    /// Files and plugins it may touch.
    #[serde(default)]
    pub scope: Vec<String>,
    /// When to give up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stop_rule: String,
}

impl PlanBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.hypothesis.trim().is_empty(), "`hypothesis` is empty")?;
        for prediction in &self.predictions {
            let what = format!("the prediction of `{}` has its bounds in different units", prediction.metric);
            require(prediction.low.unit() == prediction.high.unit(), &what)?;
        }
        Ok(())
    }
}

/// A predicted range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Of which metric.
    pub metric: String,
    /// At least.
    pub low: Quantity,
    /// At most.
    pub high: Quantity,
}

/// How a candidate is an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Plugins compiled into crit.
    Assembly,
    /// A Cargo package built into its own executable.
    Package,
    /// Any executable that speaks the engine protocol.
    Command,
}

/// Body of `candidate`. Its plan is the reference [`REL_PLAN`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateBody {
    /// Its name within the run.
    pub name: String,
    /// The manifest id of its frozen source tree; the manifest is attached.
    pub source: Digest,
    /// How it is an engine.
    pub form: Form,
    /// The candidate records it was made from; none for a first one.
    #[serde(default)]
    pub parents: Vec<RecordId>,
    /// Catalogue entries and other works it draws on.
    #[serde(default)]
    pub inspirations: Vec<String>,
}

impl CandidateBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.name.is_empty(), "`name` is empty")
    }
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it should.
    Passed,
    /// It ran and the answer is no.
    Failed,
    /// It could not run to its end.
    Error,
}

/// Body of `build`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuildBody {
    /// The candidate record built.
    pub candidate: RecordId,
    /// How it ended.
    pub status: Outcome,
    /// The candidate digest, if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Digest>,
    /// What the candidate digest is over, if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<CandidateParts>,
    /// Why there is no package, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The command that built it; empty when nothing needed compiling.
    #[serde(default)]
    pub command: Vec<String>,
    /// The exit code of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i64>,
    /// Tools used, such as `rustc 1.95.0`.
    #[serde(default)]
    pub toolchain: Vec<String>,
    /// The digest of the lock file of its dependencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Digest>,
    /// Whether the build could reach a network.
    #[serde(default)]
    pub network: bool,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took: Option<Quantity>,
}

impl BuildBody {
    fn rules(&self) -> Result<(), String> {
        if self.status != Outcome::Passed {
            require(self.package.is_none() && self.inputs.is_none(), "a build that did not pass has no package")?;
            return require(self.failure.is_some(), "a build that did not pass says why in `failure`");
        }
        require(self.failure.is_none(), "a build that passed has no `failure`")?;
        let (Some(package), Some(inputs)) = (self.package, &self.inputs) else {
            return Err("a build that passed has `package` and `inputs`".into());
        };
        require(inputs.digest() == package, "`package` is not the candidate digest of `inputs`")
    }
}

/// One smoke case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SmokeCase {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub status: Outcome,
    /// Its seed, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// What was seen, if it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Body of `smoke`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SmokeBody {
    /// The candidate digest tested.
    pub candidate: Digest,
    /// The suite and its version.
    pub suite: String,
    /// All cases, none left out.
    pub cases: Vec<SmokeCase>,
    /// How many passed.
    pub passed: u64,
    /// How many did not.
    pub failed: u64,
    /// The verdict.
    pub status: Outcome,
    /// What stopped the suite, if its status is `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl SmokeBody {
    fn rules(&self) -> Result<(), String> {
        let passed = self.cases.iter().filter(|case| case.status == Outcome::Passed).count() as u64;
        let failed = self.cases.len() as u64 - passed;
        require(self.passed == passed && self.failed == failed, "`passed` and `failed` do not count the cases")?;
        let all_passed = passed > 0 && failed == 0;
        require(self.status != Outcome::Passed || all_passed, "`passed` with no case, or with one that did not pass")?;
        require(
            self.status == Outcome::Passed || !all_passed || self.failure.is_some(),
            "all cases passed, the suite did not",
        )
    }
}

/// How a row of an ablation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowStatus {
    /// Measured.
    Measured,
    /// The plugin cannot be switched so; `reason` says why.
    NotApplicable,
    /// The variant failed; `reason` says how.
    Failed,
}

/// The one factor that an ablation row changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// All plugins but this one.
    Off,
    /// This plugin alone.
    Alone,
}

/// One row of an ablation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AblationRow {
    /// The plugin.
    pub plugin: String,
    /// How it was switched.
    pub variant: Variant,
    /// How the row stands.
    pub status: RowStatus,
    /// Why it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The metric of the variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Quantity>,
    /// The variant's change against its base, in parts per million of the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_ppm: Option<i64>,
    /// The interval of the change: at least and at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ppm: Option<[i64; 2]>,
    /// The variant's quality, such as a mean KLD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quantity>,
}

/// Body of `ablation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AblationBody {
    /// The candidate digest taken apart.
    pub candidate: Digest,
    /// The metric of the rows.
    pub metric: Metric,
    /// One row a plugin and variant.
    pub rows: Vec<AblationRow>,
}

impl AblationBody {
    fn rules(&self) -> Result<(), String> {
        for row in &self.rows {
            let name = format!("row `{}` {:?}", row.plugin, row.variant).to_lowercase();
            let has_numbers =
                row.value.is_some() || row.delta_ppm.is_some() || row.interval_ppm.is_some() || row.quality.is_some();
            if row.status == RowStatus::Measured {
                let complete = row.delta_ppm.is_some() && row.interval_ppm.is_some();
                require(complete, &format!("{name} is measured but lacks its change or interval"))?;
            } else {
                require(!has_numbers, &format!("{name} is not measured but has numbers"))?;
                require(row.reason.is_some(), &format!("{name} does not say why it is not measured"))?;
            }
            let ordered = row.interval_ppm.is_none_or(|[low, high]| low <= high);
            require(ordered, &format!("{name} has its interval upside down"))?;
        }
        Ok(())
    }
}

/// What an eval measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalKind {
    /// How fast.
    Speed,
    /// How close to the exact reference.
    Quality,
}

/// How an eval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalStatus {
    /// Announced; a later eval that refers to it by [`REL_INTENT`] closes it.
    Started,
    /// Measured.
    Finished,
    /// Measured, and the result cannot be: above physics, wrong candidate.
    Invalid,
    /// The engine or the suite failed.
    Failed,
    /// Announced and never finished.
    Aborted,
}

/// Body of `eval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvalBody {
    /// The candidate digest measured.
    pub candidate: Digest,
    /// The recon record whose limits apply.
    pub recon: RecordId,
    /// What is measured.
    pub kind: EvalKind,
    /// The suite and its version.
    pub suite: String,
    /// The digest of the workload.
    pub workload: Digest,
    /// Seeds, as text.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// Repeats thrown away before measuring.
    #[serde(default)]
    pub warmup: u64,
    /// How it stands.
    pub status: EvalStatus,
    /// The name of the attachment with all raw samples ([`Samples`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<String>,
    /// What the samples come to; each row is recomputed by `verify`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<SummaryRow>,
    /// Why it is invalid, failed or aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl EvalBody {
    fn rules(&self) -> Result<(), String> {
        let has_numbers = self.samples.is_some() || !self.summary.is_empty();
        match self.status {
            EvalStatus::Started => {
                require(!has_numbers, "an eval that only started has no samples and no summary")?;
                require(self.failure.is_none(), "an eval that only started has no `failure`")
            }
            EvalStatus::Finished => {
                require(self.samples.is_some(), "a finished eval names its `samples`")?;
                require(!self.summary.is_empty(), "a finished eval has a `summary`")?;
                require(self.failure.is_none(), "a finished eval has no `failure`")
            }
            EvalStatus::Invalid => require(self.failure.is_some(), "an invalid eval says why in `failure`"),
            EvalStatus::Failed | EvalStatus::Aborted => {
                require(self.summary.is_empty(), "an eval that did not finish has no `summary`")?;
                require(self.failure.is_some(), "an eval that did not finish says why in `failure`")
            }
        }
    }
}

/// A statistic that `verify` can recompute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// How many samples, in the unit `samples`.
    Count,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum.
    Sum,
    /// The arithmetic mean.
    Mean,
    /// The middle, or the mean of the middle two.
    Median,
}

/// One number of a summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SummaryRow {
    /// The series of samples it sums up.
    pub series: String,
    /// How.
    pub statistic: Statistic,
    /// To what.
    pub value: Quantity,
}

/// All raw samples of an eval, kept as an attachment in canonical JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// `crit.samples/v1`.
    pub schema: String,
    /// The series, each of one unit.
    pub series: Vec<Series>,
}

/// Samples of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// What was measured, such as `decode_tok_s`.
    pub name: String,
    /// The samples in the order they were taken.
    pub values: Vec<Quantity>,
}

/// Body of `decision`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionBody {
    /// What was asked.
    pub question: String,
    /// What could be answered.
    pub options: Vec<String>,
    /// The rule applied.
    pub rule: String,
    /// The records it rests on.
    #[serde(default)]
    pub inputs: Vec<RecordId>,
    /// The option taken.
    pub outcome: String,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl DecisionBody {
    fn rules(&self) -> Result<(), String> {
        require(self.options.contains(&self.outcome), "`outcome` is none of the `options`")
    }
}

/// A candidate that was not considered, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exclusion {
    /// The candidate digest.
    pub candidate: Digest,
    /// Why it was left out.
    pub reason: String,
}

/// Body of `selection`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelectionBody {
    /// The candidate digests compared.
    pub considered: Vec<Digest>,
    /// The candidates left out, each with a reason.
    #[serde(default)]
    pub excluded: Vec<Exclusion>,
    /// The rule applied.
    pub rule: String,
    /// The candidate that won.
    pub winner: Digest,
    /// The next best, if there was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<Digest>,
    /// How far the winner is ahead, in parts per million of the runner-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_ppm: Option<i64>,
    /// The noise the margin is to be read against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_ppm: Option<i64>,
    /// Eval records on data held out until the choice was made.
    #[serde(default)]
    pub holdout: Vec<RecordId>,
}

impl SelectionBody {
    fn rules(&self) -> Result<(), String> {
        require(self.considered.contains(&self.winner), "`winner` was not considered")?;
        let known = self.runner_up.is_none_or(|second| second != self.winner && self.considered.contains(&second));
        require(known, "`runner_up` was not considered, or is the winner")
    }
}

/// Body of `cost`. The buckets of a cost may be added as further fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostBody {
    /// The agent program whose transcripts were read, and its version.
    pub agent: String,
    /// How it was counted, and the version of that.
    pub method: String,
    /// The sources read.
    pub sources: Vec<CostSource>,
    /// The total in whole pico-dollars, or nothing when unpriced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
    /// The digest of the price table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_table: Option<Digest>,
    /// Whether more was spent than could be counted.
    pub lower_bound: bool,
    /// Models without a price.
    #[serde(default)]
    pub unpriced: Vec<String>,
    /// What is uncertain about the count.
    #[serde(default)]
    pub flags: Vec<String>,
}

impl CostBody {
    fn rules(&self) -> Result<(), String> {
        let in_picodollars = self.total.as_ref().is_none_or(|t| t.unit() == "pusd" && t.digits() == 0);
        require(in_picodollars, "`total` is not a whole number of `pusd`")?;
        require(self.unpriced.is_empty() || self.lower_bound, "with models unpriced the total is a lower bound")
    }
}

/// A transcript that was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostSource {
    /// The session.
    pub session: String,
    /// The digest of the part read.
    pub sha256: Digest,
    /// The length of the part read, in bytes.
    pub bytes: u64,
}

/// Body of `seal`. The store fills `tip`, `count` and `merkle_root`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SealBody {
    /// The candidate digest sealed.
    pub candidate: Digest,
    /// The digest of its executable.
    pub executable: Digest,
    /// The last record before the seal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<RecordId>,
    /// How many records precede the seal.
    #[serde(default)]
    pub count: u64,
    /// The Merkle root over the ids of those records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merkle_root: Option<Digest>,
    /// The cost of the run, if it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Quantity>,
    /// Failures that were not resolved.
    #[serde(default)]
    pub open_failures: Vec<String>,
}

impl SealBody {
    fn rules(&self) -> Result<(), String> {
        require(self.tip.is_some() && self.merkle_root.is_some(), "`tip` or `merkle_root` is missing")
    }
}

/// Body of `recovery`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryBody {
    /// What was found.
    pub reason: String,
    /// The last record that survived.
    pub last_good: RecordId,
    /// What was lost, as far as it can be told.
    pub lost: Vec<String>,
    /// Where the damaged pieces are kept.
    pub quarantined: Vec<String>,
}

impl RecoveryBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.reason.is_empty(), "`reason` is empty")
    }
}

/// Body of `signature`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SignatureBody {
    /// The seal signed.
    pub seal: RecordId,
    /// How: `ssh`, `minisign`, `sigstore`.
    pub scheme: String,
    /// The public key or identity claimed.
    pub key: String,
    /// The signature, as text.
    pub signature: String,
}

impl SignatureBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.signature.is_empty(), "`signature` is empty")
    }
}

/// Body of `anchor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AnchorBody {
    /// The record whose id was deposited.
    pub tip: RecordId,
    /// Where: an address.
    pub place: String,
    /// The receipt, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub receipt: String,
}

impl AnchorBody {
    fn rules(&self) -> Result<(), String> {
        require(!self.place.is_empty(), "`place` is empty")
    }
}

fn require(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sorted_and_schemas_say_why() {
        assert!(Kind::ALL.windows(2).all(|pair| pair[0].name() < pair[1].name()));
        for kind in Kind::ALL {
            assert_eq!(Kind::of_schema(&kind.schema()), Ok(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!(Kind::of_schema("crit.eval/v2").unwrap_err().contains("version 2"));
        assert!(Kind::of_schema("crit.poem/v1").unwrap_err().contains("poem"));
        assert!(Kind::of_schema("other").is_err());
    }

    #[test]
    fn bodies_are_refused_with_the_missing_field_named() {
        let error = Kind::Plan.check_body(&serde_json::json!({})).unwrap_err();
        assert!(error.contains("hypothesis"), "{error}");
        let empty = serde_json::json!({"candidate": Digest::of(b""), "suite": "s/1", "cases": [], "passed": 0, "failed": 0, "status": "passed"});
        assert!(Kind::Smoke.check_body(&empty).unwrap_err().contains("no case"));
    }
}
