//! `eval`: how fast a candidate is, how near to physics, and how near to the model.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::error::ToolError;
use crate::host::{self, Host};
use crate::judge::{self, Extent};
use crate::limits;
use crate::next::Next;
use crate::runs::{self, RunState};
use crate::smoke::candidate_digest;
use crate::speed;
use crate::tool::{Effect, Runs, Tool};
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::protocol::EngineInfo;
use crit_eval::ceiling::ShareState;
use crit_eval::limits::Limits;
use crit_eval::probe::{Probe, ProbeOptions};
use crit_eval::quality::{Quality, gate, texts};
use crit_eval::report::{Evaluation, Overall, Subject, html, markdown};
use crit_eval::seal::FileSeal;
use crit_eval::speed::{ServedOptions, ServedSpeed, suite};
use crit_records::format::{
    EvalBody, EvalKind, EvalStatus, MEDIA_JSON, MEDIA_SAMPLES, REL_INTENT, RecordId, Samples, Series, Statistic,
};
use crit_records::quantity::{Quantity, seed_text};
use crit_records::{Draft, Store};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of the attachment with all samples.
const SAMPLES: &str = "samples.json";
/// Tokens of each text when the call does not say.
const TOKENS: u32 = 256;

/// The tool.
pub struct Eval;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The candidate: its digest, the beginning of it, or its name; the newest built one if not given.
    #[serde(default)]
    pub candidate: Option<String>,
    /// Tokens generated for each prompt of the speed suite. Default 128.
    #[serde(default)]
    pub generate_tokens: Option<u32>,
    /// Fresh repeats of each prompt. Default 3.
    #[serde(default)]
    pub repeats: Option<u32>,
    /// Most tokens of each quality text. Default 256.
    #[serde(default)]
    pub quality_tokens: Option<u32>,
    /// Seed of prompts' first lines and of sampling; drawn after the candidate was frozen if not given.
    #[serde(default)]
    pub seed: Option<u64>,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// PASS, FAIL (quality), UNSTABLE (machine not steady), INVALID (a figure cannot be right), INCOMPLETE.
    pub verdict: String,
    /// Why it is not PASS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// One sentence.
    pub headline: String,
    /// The candidate digest.
    pub candidate: String,
    /// Its name.
    pub name: String,
    /// Decoding through the server.
    pub decode: Phase,
    /// Reading prompts through the server.
    pub prefill: Phase,
    /// Distance from the model.
    pub quality: QualityFacts,
    /// Each prompt of the suite.
    pub prompts: Vec<Prompt>,
    /// Prompts left out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// The report for agents, relative to the workspace.
    pub report_markdown: String,
    /// The report for people, relative to the workspace.
    pub report_html: String,
    /// What to do next.
    pub next: Next,
}

/// A phase of generation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Phase {
    /// Tokens a second, geometric mean over prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tok_s: Option<f64>,
    /// What the machine allows this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_tok_s: Option<f64>,
    /// The first over the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// Quality in brief.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct QualityFacts {
    /// `pass`, `fail`, `invalid` or `not measured`.
    pub verdict: String,
    /// Mode it was held to.
    pub mode: String,
    /// The path farthest from the reference.
    pub worst_path: String,
    /// Mean KL(reference ‖ candidate) on it, nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_kld: Option<f64>,
    /// Share of positions with the reference's first choice, on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_top_share: Option<f64>,
    /// Perplexity of the reference and of the candidate, on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_perplexity: Option<f64>,
    /// Perplexity of the candidate, on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Ways to reach a logit that were measured.
    pub paths: u32,
    /// Ways not measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// A prompt's figures.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Prompt {
    /// Its name.
    pub name: String,
    /// Its length.
    pub prompt_tokens: u64,
    /// Median time to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// Median decode speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tok_s: Option<f64>,
    /// Median prefill speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tok_s: Option<f64>,
    /// Tokens a pass: above 1 where drafts were accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_pass: Option<f64>,
}

impl Tool for Eval {
    const NAME: &'static str = "eval";
    const TITLE: &'static str = "Evaluate a candidate";
    const DESCRIPTION: &'static str = "Benchmark an inference engine candidate: decode and prefill tokens/s through the \
        running server, share of the roofline, and quality (KL divergence, perplexity, top-1 agreement) against the \
        exact reference on every path. Gives the verdict and a report. Needs a passed smoke test.";
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
        let recon = state.recon.ok_or_else(|| {
            ToolError::new(ErrorKind::Check, "this run has no recon, so no limits").with_next(Next::call("recon"))
        })?;
        let probe = limits::measured(context, false, &ProbeOptions::quick())?;
        let seed = params.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        let mut bench = Bench { context, store, state: &state, candidate, recon, probe, seed };
        let evaluation = bench.measure(&params)?;
        bench.answer(&chosen.name, evaluation)
    }
}

struct Bench<'a> {
    context: &'a Context,
    store: Store,
    state: &'a RunState,
    candidate: Candidate,
    recon: RecordId,
    probe: Probe,
    seed: u64,
}

impl Bench<'_> {
    fn threads(&self) -> u32 {
        let all = self.probe.machine.cores;
        self.candidate.assembly.threads.map_or(all, |threads| u32::try_from(threads).unwrap_or(all))
    }

    fn limits(&self) -> Limits {
        self.probe.limits(self.threads())
    }

    fn measure(&mut self, params: &Params) -> Result<Evaluation, ToolError> {
        let _alone = self.context.measure("eval")?;
        let limits = self.limits();
        let seed = self.seed;
        let seal = self.seal()?;
        let intent = self.started(EvalKind::Speed)?;
        let options = |info: &EngineInfo| ServedOptions {
            generate_tokens: params.generate_tokens.unwrap_or(128).max(1),
            repeats: params.repeats.unwrap_or(3).max(1),
            ..ServedOptions::new(info.max_context, seed)
        };
        let speed = speed::served(self.context, &self.candidate, &limits, options);
        let (speed, info) = self.closed(EvalKind::Speed, intent, speed)?;
        self.record_speed(intent, &speed)?;
        if let Some(why) = judge::unmeasurable(&self.candidate.assembly.model)? {
            return Ok(Evaluation { notes: vec![why], ..self.evaluation(info, speed, None) });
        }
        let intent = self.started(EvalKind::Quality)?;
        let quality = self.quality(params);
        let quality = self.closed(EvalKind::Quality, intent, quality)?;
        let mut evaluation = self.evaluation(info, speed, Some(quality));
        evaluation.tampered = seal.broken();
        self.record_quality(intent, &evaluation)?;
        Ok(evaluation)
    }

    /// What nobody may touch while the candidate is measured: its frozen files, the measured limits, crit itself.
    fn seal(&self) -> Result<FileSeal, ToolError> {
        let limits = self.context.workspace()?.cache().join("probe.json");
        let paths = [self.candidate.folder.as_path(), limits.as_path(), self.context.program.as_path()];
        let there: Vec<&Path> = paths.into_iter().filter(|path| path.exists()).collect();
        Ok(FileSeal::of(&there)?)
    }

    fn quality(&self, params: &Params) -> Result<Quality, ToolError> {
        self.context.report().phase("quality: load");
        let mut host = Host::start(&host::command(self.context, &self.candidate, "quality")?)?;
        let tokens = params.quality_tokens.unwrap_or(TOKENS).max(16) as usize;
        judge::quality(self.context, &self.candidate, &mut host, &Extent::full(tokens, self.seed))
    }

    fn body(&self, kind: EvalKind, status: EvalStatus) -> EvalBody {
        let (suite, workload) = match kind {
            EvalKind::Speed => (suite::SUITE_VERSION.to_string(), suite::suite_digest()),
            EvalKind::Quality => (format!("quality/{}", crit_eval::EVAL_VERSION), texts::suite_digest()),
        };
        EvalBody {
            candidate: self.candidate.digest,
            recon: self.recon,
            kind,
            suite,
            workload,
            seeds: vec![seed_text(self.seed)],
            warmup: 0,
            status,
            samples: None,
            summary: Vec::new(),
            failure: None,
        }
    }

    fn started(&self, kind: EvalKind) -> Result<RecordId, ToolError> {
        self.append(Draft::new(&self.body(kind, EvalStatus::Started))?)
    }

    fn append(&self, draft: Draft) -> Result<RecordId, ToolError> {
        Ok(self.store.append(&self.state.info.id, draft.about("candidate", self.candidate.digest))?)
    }

    /// Passes a result on; a failure is recorded first.
    fn closed<T>(&self, kind: EvalKind, intent: RecordId, result: Result<T, ToolError>) -> Result<T, ToolError> {
        if let Err(error) = &result {
            let failure = Some(crate::text::clean_lines(&error.message, 2000));
            let body = EvalBody { failure, ..self.body(kind, EvalStatus::Failed) };
            self.append(Draft::new(&body)?.link(REL_INTENT, intent))?;
        }
        result
    }

    fn record_speed(&self, intent: RecordId, speed: &ServedSpeed) -> Result<(), ToolError> {
        let mut series = Collected::default();
        series.one(runs::METRIC, speed.decode_tok_s, 3, "tok/s");
        series.one("prefill_tok_s", speed.prefill_tok_s, 3, "tok/s");
        series.one("decode_share", speed.decode_share.map(|share| share * 100.0), 2, "%");
        series.one("prefill_share", speed.prefill_share.map(|share| share * 100.0), 2, "%");
        for prompt in &speed.prompts {
            let figures = [
                ("decode_tok_s", &prompt.decode_tok_s, "tok/s"),
                ("prefill_tok_s", &prompt.prefill_tok_s, "tok/s"),
                ("first_token_ms", &prompt.first_token_ms, "ms"),
            ];
            for (name, measured, unit) in figures {
                if let Some(measured) = measured {
                    series.many(format!("{}.{name}", prompt.name), &measured.samples, 3, unit);
                }
            }
        }
        let invalid = speed.state == Some(ShareState::Invalid);
        let status = if invalid { EvalStatus::Invalid } else { EvalStatus::Finished };
        let failure = invalid.then(|| speed.reason.clone().unwrap_or_else(|| "above the ceiling".into()));
        let body = EvalBody { failure, ..self.body(EvalKind::Speed, status) };
        self.append(series.into_draft(body)?.link(REL_INTENT, intent))?;
        Ok(())
    }

    fn record_quality(&self, intent: RecordId, evaluation: &Evaluation) -> Result<(), ToolError> {
        let Some(quality) = &evaluation.quality else { return Ok(()) };
        let mut series = Collected::default();
        let worst = gate::worst(&quality.paths);
        series.one("worst_mean_kld", worst.and_then(|path| path.kld.as_ref()).map(|kld| kld.mean), 9, "nat");
        for path in &quality.paths {
            series.one(format!("{}.mean_kld", path.path), path.kld.as_ref().map(|kld| kld.mean), 9, "nat");
            series.one(format!("{}.same_top", path.path), path.same_top_share.map(|share| share * 100.0), 3, "%");
            series.one(format!("{}.perplexity", path.path), path.candidate_ppl, 6, "ppl");
        }
        let (verdict, _) = evaluation.verdict();
        let json = |value: &Evaluation| {
            serde_json::to_vec(value)
                .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the evaluation: {error}")))
        };
        let body = self.body(EvalKind::Quality, EvalStatus::Finished);
        let draft = series
            .into_draft(body)?
            .link(REL_INTENT, intent)
            .field("verdict", quality.verdict.word().to_lowercase())
            .field("overall", verdict.word().to_lowercase())
            .field("mode", quality.mode.name())
            .field("worst_path", quality.worst_path.clone())
            .attach("evaluation.json", MEDIA_JSON, json(evaluation)?)
            .attach("report.md", "text/markdown", markdown(evaluation).into_bytes());
        self.append(draft)?;
        Ok(())
    }

    fn evaluation(&self, info: EngineInfo, speed: ServedSpeed, quality: Option<Quality>) -> Evaluation {
        let memory = info.executor.as_ref().map(|executor| executor.memory.total_bytes());
        Evaluation {
            eval_version: crit_eval::EVAL_VERSION.into(),
            subject: Subject {
                model: speed::model_name(&self.candidate.assembly),
                candidate: self.candidate.name.clone(),
                candidate_digest: Some(self.candidate.digest.to_string()),
                checkpoint_digest: Some(self.candidate.parts.checkpoint.to_string()),
                engine: info.engine,
                arch: info.arch,
                target: info.target,
                threads: self.threads(),
                max_context: info.max_context,
                plugins: info.plugins,
                memory_bytes: memory,
                decode_pass_bytes: None,
            },
            probe: Some(self.probe.clone()),
            served: Some(speed),
            direct: None,
            quality,
            tampered: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn answer(&self, name: &str, evaluation: Evaluation) -> Result<Output, ToolError> {
        let (report_markdown, report_html) = self.write_report(&evaluation)?;
        let (verdict, reasons) = evaluation.verdict();
        let headline = evaluation.headline();
        let Some(speed) = evaluation.served else {
            return Err(ToolError::new(ErrorKind::Internal, "an evaluation without speed"));
        };
        let quality = match &evaluation.quality {
            Some(quality) => quality_facts(quality),
            None => not_measured(judge::mode(self.candidate.assembly.quality).name(), evaluation.notes),
        };
        let digest = self.candidate.digest.to_string();
        let next = match verdict {
            Overall::Pass if self.state.candidates.len() > 1 => Next::call("run_status"),
            Overall::Pass | Overall::Unstable => Next::call("inference_search").with("query", "decode"),
            _ => Next::call("plan").with("hypothesis", "mend what eval found"),
        };
        Ok(Output {
            verdict: verdict.word().into(),
            reasons: reasons.iter().take(6).map(|reason| crate::text::clean(reason, 300)).collect(),
            headline,
            candidate: digest,
            name: name.into(),
            decode: phase(speed.decode_tok_s, speed.decode_share),
            prefill: phase(speed.prefill_tok_s, speed.prefill_share),
            quality,
            prompts: prompts(&speed),
            skipped: speed.skipped.iter().map(|one| format!("{}: {}", one.name, one.why)).collect(),
            report_markdown,
            report_html,
            next,
        })
    }

    fn write_report(&self, evaluation: &Evaluation) -> Result<(String, String), ToolError> {
        let workspace = self.context.workspace()?;
        let folder = workspace.state().join("reports").join(format!(
            "{}-{}",
            self.candidate.name,
            self.candidate.digest.short()
        ));
        std::fs::create_dir_all(&folder).map_err(|error| ToolError::io("create", &folder, &error))?;
        let write = |name: &str, text: String| -> Result<String, ToolError> {
            let path: PathBuf = folder.join(name);
            std::fs::write(&path, text).map_err(|error| ToolError::io("write", &path, &error))?;
            Ok(workspace.relative(&path))
        };
        Ok((write("report.md", markdown(evaluation))?, write("report.html", html(evaluation))?))
    }
}

fn phase(tok_s: Option<f64>, share: Option<f64>) -> Phase {
    Phase { tok_s, share, ceiling_tok_s: tok_s.zip(share).map(|(tok_s, share)| tok_s / share) }
}

fn not_measured(mode: &str, why: Vec<String>) -> QualityFacts {
    QualityFacts {
        verdict: "not measured".into(),
        mode: mode.into(),
        worst_path: String::new(),
        mean_kld: None,
        same_top_share: None,
        reference_perplexity: None,
        perplexity: None,
        paths: 0,
        skipped: why,
    }
}

fn quality_facts(quality: &Quality) -> QualityFacts {
    let worst = gate::worst(&quality.paths);
    QualityFacts {
        verdict: quality.verdict.word().to_lowercase(),
        mode: quality.mode.name().into(),
        worst_path: quality.worst_path.clone(),
        mean_kld: worst.and_then(|path| path.kld.as_ref()).map(|kld| kld.mean),
        same_top_share: worst.and_then(|path| path.same_top_share),
        reference_perplexity: worst.and_then(|path| path.reference_ppl),
        perplexity: worst.and_then(|path| path.candidate_ppl),
        paths: u32::try_from(quality.paths.len()).unwrap_or(u32::MAX),
        skipped: quality.skipped.iter().map(|one| format!("{}: {}", one.path, one.why)).collect(),
    }
}

fn prompts(speed: &ServedSpeed) -> Vec<Prompt> {
    let median = |measured: &Option<crit_eval::stats::Measured>| measured.as_ref().map(|measured| measured.median);
    speed
        .prompts
        .iter()
        .map(|prompt| Prompt {
            name: prompt.name.clone(),
            prompt_tokens: prompt.prompt_tokens,
            first_token_ms: median(&prompt.first_token_ms),
            decode_tok_s: median(&prompt.decode_tok_s),
            prefill_tok_s: median(&prompt.prefill_tok_s),
            tokens_per_pass: prompt.tokens_per_pass,
        })
        .collect()
}

/// Series on their way into a record. What is not finite is no measurement and is left out.
#[derive(Default)]
struct Collected {
    series: Vec<Series>,
}

impl Collected {
    fn one(&mut self, name: impl Into<String>, value: Option<f64>, digits: u8, unit: &str) {
        if let Some(value) = value {
            self.many(name, &[value], digits, unit);
        }
    }

    fn many(&mut self, name: impl Into<String>, values: &[f64], digits: u8, unit: &str) {
        let values: Vec<Quantity> = values.iter().filter_map(|value| Quantity::of(*value, digits, unit).ok()).collect();
        if !values.is_empty() {
            self.series.push(Series { name: name.into(), values });
        }
    }

    /// The draft of `body` with the samples attached and summed up.
    fn into_draft(self, mut body: EvalBody) -> Result<Draft, ToolError> {
        let samples = Samples::new(self.series);
        let wrong = |error: String| ToolError::new(ErrorKind::Internal, format!("cannot record the samples: {error}"));
        if !samples.series.is_empty() {
            body.samples = Some(SAMPLES.into());
            for series in &samples.series {
                let digits = series.values.first().map_or(3, Quantity::digits);
                body.summary.push(samples.summarise(&series.name, Statistic::Median, digits).map_err(wrong)?);
            }
        }
        let bytes = samples.to_bytes().map_err(|error| wrong(error.to_string()))?;
        Ok(Draft::new(&body)?.attach(SAMPLES, MEDIA_SAMPLES, bytes))
    }
}
