//! `eval`: how fast a candidate is, how near to physics, and how near to the model.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::error::ToolError;
use crate::gpu;
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
use crit_core::plugin::Assembly;
use crit_core::protocol::{EngineInfo, Generate};
use crit_eval::ceiling::{CeilingModel, ShareState};
use crit_eval::census::ProcessTree;
use crit_eval::clock::MachineClock;
use crit_eval::kpi::{Kpi, Uses, kpis};
use crit_eval::limits::Limits;
use crit_eval::probe::{Probe, ProbeOptions};
use crit_eval::profile::{Profile, once_more};
use crit_eval::quality::{Quality, gate, texts};
use crit_eval::report::{Evaluation, Overall, Subject, html, markdown};
use crit_eval::seal::FileSeal;
use crit_eval::speed::honesty::{HonestyOptions, examine};
use crit_eval::speed::{BeyondOptions, Honesty, ServedOptions, ServedSpeed, suite};
use crit_records::format::{
    EvalBody, EvalKind, EvalStatus, MEDIA_JSON, MEDIA_SAMPLES, REL_INTENT, RecordId, Samples, Series, Statistic,
};
use crit_records::quantity::{Quantity, seed_text};
use crit_records::{Draft, Store};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the attachment with all samples.
const SAMPLES: &str = "samples.json";

/// The tool.
pub struct Eval;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The candidate: its digest, the beginning of it, or its name; the newest built one if not given.
    #[serde(default)]
    pub candidate: Option<String>,
    /// `quick` (default): the six prompts and every quality path. `full`: longer, and also prompts outside the suite, full
    /// context, requests side by side and a minute without a pause.
    #[serde(default)]
    pub suite: Option<Suite>,
    /// Tokens generated for each prompt of the speed suite. Default 64, 128 in `full`.
    #[serde(default)]
    pub generate_tokens: Option<u32>,
    /// Fresh repeats of each prompt. Default 2, 3 in `full`.
    #[serde(default)]
    pub repeats: Option<u32>,
    /// Most tokens of each quality text. Default 128, 256 in `full`.
    #[serde(default)]
    pub quality_tokens: Option<u32>,
    /// Seed of prompts' first lines and of sampling; drawn after the candidate was frozen if not given.
    #[serde(default)]
    pub seed: Option<u64>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// The six prompts and every quality path.
    #[default]
    Quick,
    /// Longer, and all that lies beyond the six prompts.
    Full,
}

impl Params {
    fn full(&self) -> bool {
        self.suite == Some(Suite::Full)
    }

    fn speed(&self, info: &EngineInfo, seed: u64) -> ServedOptions {
        let (tokens, repeats) = if self.full() { (128, 3) } else { (64, 2) };
        let beyond = BeyondOptions {
            widths: WIDTHS.iter().copied().filter(|width| self.full() && *width <= info.max_batch).collect(),
            full_context: self.full(),
            outside: self.full(),
        };
        ServedOptions {
            generate_tokens: self.generate_tokens.unwrap_or(tokens).max(1),
            repeats: self.repeats.unwrap_or(repeats).max(1),
            beyond,
            ..ServedOptions::new(info.max_context, seed)
        }
    }

    fn extent(&self, seed: u64) -> Extent {
        let (tokens, conduct) = if self.full() { (256, (12, 96, 2_048)) } else { (128, (6, 48, 192)) };
        let tokens = self.quality_tokens.unwrap_or(tokens).max(16) as usize;
        Extent { conduct: Some(conduct), ..Extent::full(tokens, seed) }
    }
}

/// Requests side by side in a full evaluation.
const WIDTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Seconds without a pause in a full evaluation.
const SUSTAINED_S: f64 = 60.0;

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
    /// Tokens a second over a minute without a pause (`full`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained_tok_s: Option<f64>,
    /// Decode tokens a second behind a full context (`full`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_context_tok_s: Option<f64>,
    /// Tokens a second of so many requests together, as `width: tok/s` (`full`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub side_by_side: Vec<String>,
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
        let book = Some(Book { store, state: &state, recon });
        Bench::new(context, candidate, book, &params)?.answer(&chosen.name, &params)
    }
}

/// Evaluates what is no candidate of a run, an engine.json or a model's base engine, and records nothing.
///
/// # Errors
/// It cannot be started or measured.
pub fn unrecorded(context: &Context, target: &Path, params: &Params) -> Result<Output, ToolError> {
    let assembly = match target.extension().is_some_and(|end| end == "json") && target.is_file() {
        true => crate::assembly::from_file(target)?,
        false => Assembly::base(target.canonicalize().map_err(|error| ToolError::io("open", target, &error))?),
    };
    crate::assembly::check(assembly.clone(), &[])?;
    let candidate = Candidate::unrecorded(context, target, assembly)?;
    let name = candidate.name.clone();
    Bench::new(context, candidate, None, params)?.answer(&name, params)
}

/// Where an evaluation is recorded.
struct Book<'a> {
    store: Store,
    state: &'a RunState,
    recon: RecordId,
}

struct Bench<'a> {
    context: &'a Context,
    book: Option<Book<'a>>,
    candidate: Candidate,
    probe: Probe,
    /// Of the device, for candidates that run on one.
    gpu: Option<gpu::Found>,
    seed: u64,
}

impl<'a> Bench<'a> {
    fn new(
        context: &'a Context,
        candidate: Candidate,
        book: Option<Book<'a>>,
        params: &Params,
    ) -> Result<Self, ToolError> {
        let probe = limits::measured(context, false, &ProbeOptions::quick())?;
        let gpu = match candidate.assembly.backend() {
            "cuda" => Some(gpu::measured(context, candidate.assembly.device().unwrap_or(0), false)?),
            _ => None,
        };
        // The candidate is frozen: what is drawn now it cannot have seen.
        let seed = params.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        Ok(Self { context, book, candidate, probe, gpu, seed })
    }

    fn threads(&self) -> u32 {
        let all = self.probe.machine.cores;
        self.candidate.assembly.threads.map_or(all, |threads| u32::try_from(threads).unwrap_or(all))
    }

    fn limits(&self) -> Limits {
        match &self.gpu {
            Some(gpu) => gpu.limits(),
            None => self.probe.limits(self.threads()),
        }
    }

    fn measure(&mut self, params: &Params) -> Result<Evaluation, ToolError> {
        let _alone = self.context.measure("eval")?;
        let limits = self.limits();
        let seed = self.seed;
        let seal = self.seal()?;
        let intent = self.started(EvalKind::Speed)?;
        let options = |info: &EngineInfo| params.speed(info, seed);
        let speed = speed::served(self.context, &self.candidate, &limits, options);
        let (speed, info) = self.closed(EvalKind::Speed, intent, speed)?;
        self.record_speed(intent, &speed)?;
        if let Some(why) = judge::unmeasurable(&self.candidate.assembly.model)? {
            return Ok(Evaluation { notes: vec![why], ..self.evaluation(info, speed, None) });
        }
        let intent = self.started(EvalKind::Quality)?;
        let quality = self.quality(params);
        let (quality, honesty, explained) = self.closed(EvalKind::Quality, intent, quality)?;
        let mut evaluation = self.evaluation(info, speed, Some(quality));
        if honesty.pace_counts {
            let of = |speed: Option<f64>| speed.map_or("?".into(), |speed| format!("{speed:.1}"));
            evaluation.notes.push(format!(
                "speed falls under load: {} tok/s over a minute, {} after a rest; the pace is what counts",
                of(honesty.sustained_tok_s),
                of(honesty.burst_tok_s)
            ));
        }
        let mut honesty = honesty;
        if !self.limits().is_stable() {
            // Told by time, on a machine whose time is not its own.
            let doubts = std::mem::take(&mut honesty.doubts);
            evaluation.notes.extend(doubts.into_iter().map(|doubt| format!("seen on an unsteady machine: {doubt}")));
        }
        evaluation.honesty = Some(honesty);
        (evaluation.kpis, evaluation.profile) = explained;
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

    fn quality(&self, params: &Params) -> Result<(Quality, Honesty, Explained), ToolError> {
        self.context.report().phase("quality: load");
        let mut host = Host::start(&host::command(self.context, &self.candidate, "quality")?)?;
        let quality = judge::quality(self.context, &self.candidate, &mut host, &params.extent(self.seed))?;
        let (pid, options) = (host.pid(), self.honesty(params)?);
        let progress = |line: &str| self.context.report().phase(line);
        let honesty = examine(&mut host, &options, &MachineClock::start(), &mut ProcessTree(pid), &progress)?;
        let explained = self.explain(&mut host)?;
        Ok((quality, honesty, explained))
    }

    /// What the machine allows, and where a decode step goes.
    fn explain(&self, host: &mut Host) -> Result<Explained, ToolError> {
        let info = host.client().info()?;
        let Some(executor) = info.executor else { return Ok((Vec::new(), None)) };
        self.context.report().phase("ceilings: use by use, op by op");
        let (limits, model) = (self.limits(), crate::model::open(&self.candidate.assembly.model)?);
        let ceilings = CeilingModel::new(&model.program, &executor, &limits)?;
        let prompt = self.honesty(&Params::default())?.public.swap_remove(0);
        let run = |tokens: u32| -> Result<f64, ToolError> {
            let begun = Instant::now();
            let request = Generate { prompt: prompt.clone(), max_tokens: tokens, ..Generate::default() };
            host.client().submit(request)?.finish()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        run(PROFILED)?;
        // Reading the prompt is the same in both: what the longer one adds is decoding.
        let (start, read_s, read) = (host.client().stats()?, run(1)?, host.client().stats()?);
        let (whole_s, whole) = (run(PROFILED)?, host.client().stats()?);
        let profile = Profile::of(&once_more(&start, &read), &whole, whole_s - read_s, &ceilings);
        let drafted = whole.drafted_tokens.saturating_sub(start.drafted_tokens);
        let accepted = whole.accepted_tokens.saturating_sub(start.accepted_tokens) as f64;
        let passes = f64::from(PROFILED) - accepted;
        let uses = Uses {
            context: info.max_context,
            batch: info.max_batch,
            tokens_a_pass: (drafted > 0 && passes > 0.0).then(|| f64::from(PROFILED) / passes),
            drafted: if drafted > 0 { DRAFTED } else { 0 },
        };
        let best = judge::mode(self.candidate.assembly.quality).fastest_allowed();
        Ok((kpis(&ceilings, best, uses), profile))
    }

    /// Prompts anyone can know and prompts drawn now, of the same kind and length.
    fn honesty(&self, params: &Params) -> Result<HonestyOptions, ToolError> {
        let tokenizer = judge::tokenizer(&self.candidate.assembly.model)?;
        let public: Vec<u32> =
            judge::texts(&self.candidate.assembly.model)?.into_iter().flat_map(|text| text.ids).collect();
        let cut = |ids: &[u32]| ids[..ids.len().min(PROMPT_TOKENS)].to_vec();
        let secret = (0..24u64).map(|i| {
            let content = texts::secret(self.seed.wrapping_add(i), PROMPT_TOKENS * 8);
            Ok(cut(&tokenizer.encode(&content, true)?))
        });
        Ok(HonestyOptions {
            public: public.chunks(PROMPT_TOKENS).take(12).map(cut).collect(),
            secret: secret.collect::<Result<_, ToolError>>()?,
            tokens: 48,
            sustained_s: if params.full() { SUSTAINED_S } else { 0.0 },
            seed: self.seed,
        })
    }

    fn body(&self, recon: RecordId, kind: EvalKind, status: EvalStatus) -> EvalBody {
        let (suite, workload) = match kind {
            EvalKind::Speed => (suite::SUITE_VERSION.to_string(), suite::suite_digest()),
            EvalKind::Quality => (format!("quality/{}", crit_eval::EVAL_VERSION), texts::suite_digest()),
        };
        EvalBody {
            candidate: self.candidate.digest,
            recon,
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

    fn started(&self, kind: EvalKind) -> Result<Option<RecordId>, ToolError> {
        let Some(book) = &self.book else { return Ok(None) };
        book.append(&self.candidate, Draft::new(&self.body(book.recon, kind, EvalStatus::Started))?).map(Some)
    }

    /// Passes a result on; a failure is recorded first.
    fn closed<T>(
        &self,
        kind: EvalKind,
        intent: Option<RecordId>,
        result: Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        if let (Err(error), Some(book), Some(intent)) = (&result, &self.book, intent) {
            let failure = Some(crate::text::clean_lines(&error.message, 2000));
            let body = EvalBody { failure, ..self.body(book.recon, kind, EvalStatus::Failed) };
            book.append(&self.candidate, Draft::new(&body)?.link(REL_INTENT, intent))?;
        }
        result
    }

    fn record_speed(&self, intent: Option<RecordId>, speed: &ServedSpeed) -> Result<(), ToolError> {
        let Some((book, intent)) = self.book.as_ref().zip(intent) else { return Ok(()) };
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
        let body = EvalBody { failure, ..self.body(book.recon, EvalKind::Speed, status) };
        book.append(&self.candidate, series.into_draft(body)?.link(REL_INTENT, intent))?;
        Ok(())
    }

    fn record_quality(&self, intent: Option<RecordId>, evaluation: &Evaluation) -> Result<(), ToolError> {
        let Some((book, intent)) = self.book.as_ref().zip(intent) else { return Ok(()) };
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
        let body = self.body(book.recon, EvalKind::Quality, EvalStatus::Finished);
        let draft = series
            .into_draft(body)?
            .link(REL_INTENT, intent)
            .field("verdict", quality.verdict.word().to_lowercase())
            .field("overall", verdict.word().to_lowercase())
            .field("mode", quality.mode.name())
            .field("worst_path", quality.worst_path.clone())
            .attach("evaluation.json", MEDIA_JSON, json(evaluation)?)
            .attach("report.md", "text/markdown", markdown(evaluation).into_bytes());
        book.append(&self.candidate, draft)?;
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
            kpis: Vec::new(),
            profile: None,
            honesty: None,
            tampered: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn answer(mut self, name: &str, params: &Params) -> Result<Output, ToolError> {
        let evaluation = self.measure(params)?;
        let (report_markdown, report_html) = self.write_report(&evaluation)?;
        let (verdict, reasons) = evaluation.verdict();
        let headline = evaluation.headline();
        let Some(speed) = evaluation.served else {
            return Err(ToolError::new(ErrorKind::Internal, "an evaluation without speed"));
        };
        let quality = match &evaluation.quality {
            Some(quality) => quality_facts(quality),
            None => not_measured(judge::mode(self.candidate.assembly.quality).name(), evaluation.notes.clone()),
        };
        let (digest, beyond) = (self.candidate.digest.to_string(), speed.beyond.as_ref());
        let next = match verdict {
            Overall::Pass if self.book.as_ref().is_some_and(|book| book.state.candidates.len() > 1) => {
                Next::call("run_status")
            }
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
            sustained_tok_s: evaluation.honesty.as_ref().and_then(|honesty| honesty.sustained_tok_s),
            full_context_tok_s: beyond.and_then(|b| b.full_context.as_ref()).map(|depth| depth.decode_tok_s),
            side_by_side: beyond
                .into_iter()
                .flat_map(|beyond| &beyond.widths)
                .map(|one| format!("{}: {:.1}", one.width, one.total_tok_s))
                .collect(),
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
        // The same as data: whoever doubts a figure has every sample.
        write("evaluation.json", serde_json::to_string_pretty(evaluation).unwrap_or_default() + "\n")?;
        Ok((write("report.md", markdown(evaluation))?, write("report.html", html(evaluation))?))
    }
}

/// What explains figures.
type Explained = (Vec<Kpi>, Option<Profile>);
/// Tokens decoded for the profile of a step.
const PROFILED: u32 = 65;
/// Drafted tokens a pass that the ceilings of speculative decoding assume.
const DRAFTED: u32 = 4;

/// Prompt tokens of the looks at what an engine remembers.
const PROMPT_TOKENS: usize = 64;

impl Book<'_> {
    fn append(&self, candidate: &Candidate, draft: Draft) -> Result<RecordId, ToolError> {
        Ok(self.store.append(&self.state.info.id, draft.about("candidate", candidate.digest))?)
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
