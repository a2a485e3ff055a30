//! Runs the paths: reference first (or its kept rows), then the candidate path by path, each row reduced and dropped.

use super::conduct::Conduct;
use super::gate::{Mode, Verdict, judge, worst};
use super::identity::{self, Identity};
use super::plan::{PathKind, PathPlan, PlanLimits, expected_rows, paths as all_paths};
use super::reduce::{PathResult, Reducer, RowKld};
use super::reference::{ReferenceKey, ReferenceRows, compute, kept};
use super::texts::Text;
use crate::error::EvalError;
use crate::link::EngineLink;
use crate::seal::FileSeal;
use crate::{EVAL_VERSION, Progress};
use crit_core::error::Failure;
use crit_core::protocol::ScoreRow;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Starts the reference engine when its rows are not kept yet.
pub type OpenReference<'a> = &'a mut dyn FnMut() -> Result<Box<dyn EngineLink>, Failure>;

/// How quality is to be measured.
#[derive(Clone, Debug)]
pub struct QualityOptions {
    /// What the candidate is held to.
    pub mode: Mode,
    /// Most tokens of each text.
    pub tokens_per_text: usize,
    /// Tokens of the prompt behind which decoding at depth is scored, as far as texts and context reach.
    pub depth_tokens: usize,
    /// Flips where the reference's first two choices are closer than this are near ties. Two exact f32 orders of the
    /// same sum differ by less than 0.01; 0.1 leaves room for honest 8-bit products.
    pub near_tie_nats: f64,
    /// Seed of chunk sizes, false drafts and the self-check.
    pub seed: u64,
    /// Paths to run; `None` for all.
    pub paths: Option<Vec<PathKind>>,
    /// Where the reference's rows are kept.
    pub cache_dir: PathBuf,
    /// Which reference.
    pub reference: ReferenceKey,
    /// Most bytes of kept rows; texts are cut to fit.
    pub max_reference_bytes: u64,
}

impl QualityOptions {
    /// The full measurement: all paths, 512 tokens a text, at most 2 GiB of kept rows.
    pub fn new(mode: Mode, cache_dir: PathBuf, reference: ReferenceKey) -> Self {
        Self {
            mode,
            tokens_per_text: 512,
            depth_tokens: 2_048,
            near_tie_nats: 0.1,
            seed: 1,
            paths: None,
            cache_dir,
            reference,
            max_reference_bytes: 2 << 30,
        }
    }
}

/// A path that was not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SkippedPath {
    /// Its name.
    pub path: String,
    /// Why.
    pub why: String,
}

/// A candidate's quality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quality {
    /// What it was held to.
    pub mode: Mode,
    /// The verdict.
    pub verdict: Verdict,
    /// Why it is not a pass.
    pub reasons: Vec<String>,
    /// The path farthest from the reference.
    pub worst_path: String,
    /// Every path measured.
    pub paths: Vec<PathResult>,
    /// What the engine does when it generates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conduct: Vec<Conduct>,
    /// Paths not measured.
    pub skipped: Vec<SkippedPath>,
    /// The evaluator measured by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Mean divergence of the reference from itself when it computes the same rows in other steps, nats: what no engine
    /// can be held to.
    #[serde(default)]
    pub reference_spread: f64,
    /// Texts, by name, with the tokens scored of each.
    pub texts: Vec<(String, u64)>,
    /// Near-tie distance used.
    pub near_tie_nats: f64,
    /// The reference.
    pub reference: String,
    /// Version of the evaluation.
    pub eval_version: String,
}

impl Quality {
    /// The same with checks of the engine's generation: one that fails is a fail of the whole.
    pub fn with_conduct(mut self, checks: Vec<Conduct>) -> Self {
        let complaints: Vec<String> = checks.iter().filter_map(Conduct::complaint).collect();
        if self.verdict == Verdict::Pass && !complaints.is_empty() {
            self.verdict = Verdict::Fail;
        }
        self.reasons.extend(complaints);
        self.conduct.extend(checks);
        self
    }
}

/// Measures `candidate` on `texts`.
///
/// # Errors
/// An engine fails or answers outside the protocol, or the reference's rows cannot be kept.
pub fn measure(
    candidate: &mut dyn EngineLink,
    open_reference: OpenReference<'_>,
    texts: &[Text],
    options: &QualityOptions,
    progress: Progress<'_>,
) -> Result<Quality, EvalError> {
    let info = candidate.info().map_err(|failure| failed("opening the engine", failure))?;
    let limits = PlanLimits::of(&info);
    let texts = cut(texts, limits.context, info.vocab, options)?;
    let mut rows = reference_rows(open_reference, &texts, info.vocab, options, progress)?;
    let files: Vec<&Path> = rows.iter().map(ReferenceRows::path).collect();
    let seal = FileSeal::of(&files)?;
    progress("quality: the evaluator against itself");
    let identity = check_identity(&mut rows, options.seed)?;
    let reference_spread = rows.iter().filter_map(ReferenceRows::spread).fold(0.0, f64::max);
    let wanted = options.paths.clone().unwrap_or_else(|| all_paths(limits));
    let (mut paths, mut skipped, mut prompt) = (Vec::new(), Vec::new(), Vec::new());
    for kind in wanted {
        progress(&format!("quality: {} ({})", kind.name(), kind.what()));
        match run_path(kind, candidate, &texts, &mut rows, limits, info.vocab, options, &mut prompt)? {
            Ok(result) => paths.push(result),
            Err(why) => skipped.push(SkippedPath { path: kind.name(), why }),
        }
    }
    let doubts = [identity.complaints(), seal.broken()].concat();
    let (verdict, reasons) = match doubts.is_empty() {
        true => judge(options.mode, &paths, reference_spread),
        false => (Verdict::Invalid, doubts),
    };
    Ok(Quality {
        identity: Some(identity),
        conduct: Vec::new(),
        reference_spread,
        mode: options.mode,
        verdict,
        reasons,
        worst_path: worst(&paths).map_or_else(String::new, |path| path.path.clone()),
        paths,
        skipped,
        texts: texts.iter().map(|text| (text.name.clone(), text.ids.len() as u64)).collect(),
        near_tie_nats: options.near_tie_nats,
        reference: options.reference.version.clone(),
        eval_version: EVAL_VERSION.into(),
    })
}

/// Cuts texts to what the context, the options and the space for kept rows allow.
fn cut(texts: &[Text], context: u32, vocab: u32, options: &QualityOptions) -> Result<Vec<Text>, EvalError> {
    let row_bytes = u64::from(vocab).max(1) * 4;
    let by_space = options.max_reference_bytes / row_bytes / (texts.len() as u64).max(1);
    let tokens = options.tokens_per_text.min(context as usize).min(usize::try_from(by_space).unwrap_or(usize::MAX));
    let mut cut: Vec<Text> = texts
        .iter()
        .map(|text| Text::new(text.name.clone(), text.ids[..text.ids.len().min(tokens)].to_vec()))
        .filter(|text| text.ids.len() > 1)
        .collect();
    if cut.is_empty() {
        return Err(EvalError::Request {
            what: format!("{tokens} tokens a text leave nothing to score"),
            hint: "raise `context`, the tokens a text or the space for the reference's rows".into(),
        });
    }
    cut.extend(long(texts, context, options.depth_tokens));
    Ok(cut)
}

fn check_identity(rows: &mut [ReferenceRows], seed: u64) -> Result<Identity, EvalError> {
    let mut taken = Vec::new();
    let share = identity::ROWS.div_ceil(rows.len().max(1));
    for text in rows.iter_mut() {
        for position in text.positions().take(share) {
            let mut row = Vec::new();
            text.read(position, &mut row)?;
            taken.push(row);
        }
    }
    Ok(identity::check(&taken, seed))
}

/// All texts one behind the other, to `depth` tokens or what the context holds; only the end is scored.
fn long(texts: &[Text], context: u32, depth: usize) -> Option<Text> {
    let all: Vec<u32> = texts.iter().flat_map(|text| text.ids.iter().copied()).collect();
    let tokens = all.len().min(context as usize).min(depth);
    // Less deep than what the decode path reads anyway says nothing new.
    (tokens > 2 * DEPTH_SCORED).then(|| Text {
        name: "long".into(),
        ids: all[..tokens].to_vec(),
        from: tokens - DEPTH_SCORED,
    })
}

/// Tokens scored at depth.
const DEPTH_SCORED: usize = 48;

fn reference_rows(
    open: OpenReference<'_>,
    texts: &[Text],
    vocab: u32,
    options: &QualityOptions,
    progress: Progress<'_>,
) -> Result<Vec<ReferenceRows>, EvalError> {
    let (dir, key) = (&options.cache_dir, &options.reference);
    let mut engine: Option<Box<dyn EngineLink>> = None;
    let mut all = Vec::new();
    for text in texts {
        let rows = match kept(dir, key, text) {
            Some(rows) => rows,
            None => {
                let bytes = (text.ids.len() - text.from) as u64 * u64::from(vocab) * 4;
                progress(&format!(
                    "quality: reference over `{}`, {} tokens, {:.1} MB of log-probs kept in {}",
                    text.name,
                    text.ids.len(),
                    bytes as f64 / 1e6,
                    dir.display()
                ));
                let engine = match &mut engine {
                    Some(engine) => engine,
                    none => none.insert(open().map_err(|failure| EvalError::Engine {
                        who: "reference".into(),
                        doing: "starting it".into(),
                        failure,
                    })?),
                };
                compute(dir, key, text, engine.as_mut())?
            }
        };
        if rows.vocab() != vocab as usize {
            return Err(protocol(
                "comparing vocabularies",
                format!("its rows have {vocab} values, the reference's {}", rows.vocab()),
            ));
        }
        all.push(rows);
    }
    Ok(all)
}

type Outcome = Result<PathResult, String>;

fn run_path(
    kind: PathKind,
    candidate: &mut dyn EngineLink,
    texts: &[Text],
    rows: &mut [ReferenceRows],
    limits: PlanLimits,
    vocab: u32,
    options: &QualityOptions,
    prompt: &mut Vec<RowKld>,
) -> Result<Outcome, EvalError> {
    let plans = kind.build(texts, limits, vocab, options.seed);
    if plans.is_empty() {
        return Ok(Err("the engine's limits on batch or step rule it out".into()));
    }
    let mut reducer = Reducer::new(texts.len(), options.near_tie_nats, options.seed);
    let mut hit = 0u64;
    for plan in &plans {
        let hits = run_plan(plan, candidate, texts, rows, vocab, &mut reducer)?;
        hit += hits.iter().map(|h| u64::from(*h)).sum::<u64>();
    }
    if kind == PathKind::PrefixCache && hit == 0 {
        return Ok(Err("the engine has no prefix cache, or it held nothing".into()));
    }
    if kind == PathKind::Prompt {
        *prompt = reducer.rows().to_vec();
    }
    reducer
        .finish(&kind.name(), &kind.what(), prompt)
        .map(Ok)
        .ok_or_else(|| protocol(&format!("scoring {}", kind.name()), "no row was reported".into()))
}

fn run_plan(
    path: &PathPlan,
    candidate: &mut dyn EngineLink,
    texts: &[Text],
    rows: &mut [ReferenceRows],
    vocab: u32,
    reducer: &mut Reducer,
) -> Result<Vec<u32>, EvalError> {
    let doing = format!("scoring {}", path.kind.name());
    let mut scoring =
        Scoring { path, texts, rows, vocab, reducer, doing: &doing, seen: HashSet::new(), reference: Vec::new() };
    let mut trouble = None;
    let outcome = candidate.score(&path.plan, &mut |row, values| {
        if trouble.is_none() {
            trouble = scoring.take(row, values).err();
        }
    });
    if let Some(trouble) = trouble {
        return Err(trouble);
    }
    let hits = outcome.map_err(|failure| failed(&doing, failure))?;
    scoring.check_complete(&hits)?;
    Ok(hits)
}

/// A plan while its rows arrive.
struct Scoring<'a> {
    path: &'a PathPlan,
    texts: &'a [Text],
    rows: &'a mut [ReferenceRows],
    vocab: u32,
    reducer: &'a mut Reducer,
    doing: &'a str,
    seen: HashSet<(u32, u32)>,
    reference: Vec<f32>,
}

impl Scoring<'_> {
    fn take(&mut self, row: ScoreRow, values: &[f32]) -> Result<(), EvalError> {
        let (seq, position, doing) = (row.seq, row.position, self.doing);
        let Some(text) = self.path.texts.get(seq as usize).copied() else {
            return Err(protocol(doing, format!("a row of sequence {seq}, which the plan has not")));
        };
        if values.len() != self.vocab as usize {
            return Err(protocol(doing, format!("a row of {} values, not {}", values.len(), self.vocab)));
        }
        if !self.seen.insert((seq, position)) {
            return Err(protocol(doing, format!("the row of sequence {seq} at position {position} twice")));
        }
        self.rows[text].read(position, &mut self.reference)?;
        let Text { name, ids, .. } = &self.texts[text];
        let next = ids.get(position as usize + 1..).unwrap_or(&[]);
        self.reducer.add((text, position), &self.reference, values, next).map_err(|_| EvalError::Protocol {
            who: "reference".into(),
            doing: doing.to_string(),
            what: format!("its row at position {position} of `{name}` is no distribution"),
        })
    }

    fn check_complete(&self, hits: &[u32]) -> Result<(), EvalError> {
        let expected = expected_rows(&self.path.plan, hits).into_iter().map(|row| (row.seq, row.position));
        let expected: HashSet<(u32, u32)> = expected.collect();
        match expected.symmetric_difference(&self.seen).min() {
            None => Ok(()),
            Some((seq, position)) => {
                let word = if self.seen.contains(&(*seq, *position)) { "was not asked for" } else { "is missing" };
                Err(protocol(self.doing, format!("the row of sequence {seq} at position {position} {word}")))
            }
        }
    }
}

fn failed(doing: &str, failure: Failure) -> EvalError {
    EvalError::Engine { who: "candidate".into(), doing: doing.into(), failure }
}

fn protocol(doing: &str, what: String) -> EvalError {
    EvalError::Protocol { who: "candidate".into(), doing: doing.into(), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Scripted};
    use crit_core::digest::Digest;

    fn texts() -> Vec<Text> {
        // Mostly what the scripted model itself expects, so that its perplexity is far below uniform.
        let text = |name: &str, seed: u32, n: u32| Text::new(name, Scripted::likely_text(seed, n as usize));
        vec![text("a", 1, 140), text("b", 2, 90), text("c", 3, 61)]
    }

    fn options(dir: &std::path::Path, mode: Mode) -> QualityOptions {
        let reference = ReferenceKey { checkpoint: Digest::of(b"scripted"), version: "scripted 1".into() };
        QualityOptions::new(mode, dir.to_path_buf(), reference)
    }

    fn measured(fault: Fault, mode: Mode) -> Result<Quality, EvalError> {
        let dir = tempfile::tempdir().unwrap();
        let mut open = || Ok(Box::new(Scripted::new(Fault::None)) as Box<dyn EngineLink>);
        measure(&mut Scripted::new(fault), &mut open, &texts(), &options(dir.path(), mode), &|_| {})
    }

    fn path<'a>(quality: &'a Quality, name: &str) -> &'a PathResult {
        quality.paths.iter().find(|path| path.path == name).unwrap()
    }

    #[test]
    fn the_same_engine_is_at_no_distance_on_every_path() {
        let quality = measured(Fault::None, Mode::Preserve).unwrap();
        assert_eq!(quality.verdict, Verdict::Pass, "{:?}", quality.reasons);
        let all = all_paths(PlanLimits::of(&Scripted::new(Fault::None).info().unwrap()));
        assert_eq!((quality.paths.len(), quality.skipped.len()), (all.len(), 0));
        for path in &quality.paths {
            assert!(path.kld.unwrap().max <= 1e-6 && path.same_top_share == Some(1.0), "{path:?}");
        }
        assert_eq!(path(&quality, "prompt").rows, 140 + 90 + 61);
    }

    #[test]
    fn a_fault_on_one_path_is_found_on_that_path_and_named() {
        for (fault, name) in [
            (Fault::SingleTokenSteps, "decode"),
            (Fault::Rollback, "verify"),
            (Fault::BatchMates, "batch"),
            (Fault::CachedPrefix, "prefix_cache"),
            (Fault::ChunkEdges(7), "chunks_7"),
        ] {
            let quality = measured(fault, Mode::Speed).unwrap();
            assert_eq!(quality.verdict, Verdict::Fail, "{fault:?}");
            assert!(quality.reasons.iter().any(|reason| reason.starts_with(name)), "{fault:?}: {:?}", quality.reasons);
            assert!(path(&quality, "prompt").kld.unwrap().max <= 1e-6, "{fault:?}");
        }
    }

    #[test]
    fn a_small_drift_passes_speed_and_fails_preserve() {
        let quality = measured(Fault::Noise(0.5), Mode::Speed).unwrap();
        assert_eq!(quality.verdict, Verdict::Pass, "{:?}", quality.reasons);
        assert_eq!(measured(Fault::Noise(0.5), Mode::Preserve).unwrap().verdict, Verdict::Fail);
        for path in &quality.paths {
            assert!(path.self_check_z.abs() < 4.0, "{path:?}");
        }
    }

    #[test]
    fn not_a_number_fails_whatever_the_mean() {
        let quality = measured(Fault::NotANumber, Mode::Speed).unwrap();
        assert_eq!(quality.verdict, Verdict::Fail);
        assert!(quality.reasons[0].contains("no distribution"), "{:?}", quality.reasons);
    }

    #[test]
    fn rows_left_out_or_invented_stop_the_measurement() {
        let missing = measured(Fault::DropsLastRow, Mode::Speed).unwrap_err().to_string();
        assert!(missing.contains("is missing"), "{missing}");
        let twice = measured(Fault::RepeatsRows, Mode::Speed).unwrap_err().to_string();
        assert!(twice.contains("twice"), "{twice}");
    }

    #[test]
    fn an_engine_without_a_prefix_cache_skips_that_path_with_the_reason() {
        let quality = measured(Fault::NoPrefixCache, Mode::Preserve).unwrap();
        assert_eq!(quality.verdict, Verdict::Pass);
        assert_eq!(quality.skipped.len(), 1);
        assert!(quality.skipped[0].why.contains("no prefix cache"));
    }

    #[test]
    fn a_reference_that_does_not_match_its_text_is_invalid() {
        let dir = tempfile::tempdir().unwrap();
        // Both engines give each row's log-probs one position late.
        let mut open = || Ok(Box::new(Scripted::new(Fault::Shifted)) as Box<dyn EngineLink>);
        let mut candidate = Scripted::new(Fault::Shifted);
        let quality = measure(&mut candidate, &mut open, &texts(), &options(dir.path(), Mode::Speed), &|_| {}).unwrap();
        assert_eq!(quality.verdict, Verdict::Invalid, "{:?}", quality.reasons);
    }

    #[test]
    fn kept_rows_are_used_again_unless_they_were_touched() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), Mode::Speed);
        let starts = std::cell::Cell::new(0);
        let run = || {
            let mut open = || {
                starts.set(starts.get() + 1);
                Ok(Box::new(Scripted::new(Fault::None)) as Box<dyn EngineLink>)
            };
            measure(&mut Scripted::new(Fault::None), &mut open, &texts(), &options, &|_| {}).unwrap()
        };
        let first = run();
        assert_eq!((first == run(), starts.get()), (true, 1));
        let mut rows = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        let file = rows.find(|p| p.extension().is_some_and(|e| e == "f32")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[5] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert_eq!((first == run(), starts.get()), (true, 2));
    }

    #[test]
    fn texts_are_cut_to_the_space_for_kept_rows() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), Mode::Speed);
        options.max_reference_bytes = 3 * 20 * u64::from(Scripted::VOCAB) * 4;
        let mut open = || Ok(Box::new(Scripted::new(Fault::None)) as Box<dyn EngineLink>);
        let mut candidate = Scripted::new(Fault::None);
        let quality = measure(&mut candidate, &mut open, &texts(), &options, &|_| {}).unwrap();
        assert!(quality.texts.iter().filter(|(name, _)| name != "long").all(|(_, tokens)| *tokens == 20));
        options.max_reference_bytes = 0;
        assert!(measure(&mut candidate, &mut open, &texts(), &options, &|_| {}).is_err());
    }
}
