//! What an engine does when it generates, judged by its own rows and by the reference's.
//!
//! Scoring shows the distributions an engine *can* give; speed is measured while it generates. These checks join the two:
//! the tokens of a generation are fed back, and each must be one the engine's own row allows. Correct sampling makes
//! Σ(−ln p(x) − H) a martingale, so over its standard deviation it is a standard normal number z, and so is how often the
//! likeliest token came against the sum of its probabilities: an engine that accepts
//! drafts unchecked, samples colder than asked, or generates with other kernels than it scores with, shows there. The long
//! run is scored by the reference as well, and a loop in it is put to the reference: a model that loops there by itself is
//! as it should be, an engine that loops alone is not, however fast it is.
//!
//! A check that cannot be made says so; it never counts as passed.

use super::plan::PlanLimits;
use super::texts::Text;
use crate::Progress;
use crate::error::EvalError;
use crate::link::{EngineLink, Generation};
use crit_core::error::Failure;
use crit_core::protocol::{FinishReason, ScoreItem, ScorePlan, ScoreSequence, TokenLogprobs, Usage};
use crit_core::sampling::{Distribution, SamplingParams, distribution};
use serde::{Deserialize, Serialize};

/// Largest |z|: one false alarm in 16,000.
const LARGEST_Z: f64 = 4.0;
/// Prompt tokens of the checks.
const PROMPT_TOKENS: usize = 24;
/// Log-probs told and log-probs scored come from steps of other widths: half of them may differ by this much, nats.
const LOGPROB_MEDIAN: f64 = 0.02;
/// And nine in ten by this much.
const LOGPROB_MOST: f64 = 0.25;
/// Longest period of a loop that is looked for.
const LONGEST_PERIOD: usize = 256;
/// Samples of the reference from where a loop begins.
const REFERENCE_SAMPLES: u64 = 8;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConductState {
    /// As it should be.
    Pass,
    /// Not as it should be.
    Fail,
    /// It could not be checked.
    NotMeasured,
}

/// A check of an engine's generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conduct {
    /// Its name.
    pub check: String,
    /// What it does, in a sentence.
    pub what: String,
    /// How it ended.
    pub state: ConductState,
    /// What was seen.
    pub detail: String,
}

impl Conduct {
    /// A finished check.
    pub fn new(check: &str, what: &str, state: ConductState, detail: String) -> Self {
        Self { check: check.into(), what: what.into(), state, detail }
    }

    /// Why the engine is refused, if it is.
    pub fn complaint(&self) -> Option<String> {
        (self.state == ConductState::Fail).then(|| format!("{}: {}", self.check, self.detail))
    }
}

/// How to check.
#[derive(Clone, Debug, PartialEq)]
pub struct ConductOptions {
    /// The model's own way to choose tokens; penalties are left out, since they depend on more than a row.
    pub sampling: SamplingParams,
    /// The model's end tokens.
    pub stop_ids: Vec<u32>,
    /// Tokens of each sampled run.
    pub tokens: u32,
    /// Sampled runs.
    pub runs: u32,
    /// Tokens of the long run.
    pub free_run_tokens: u32,
    /// Choices closer than this are ties, nats.
    pub near_tie_nats: f64,
    /// Seed of the sampling, drawn after the engine was fixed.
    pub seed: u64,
}

impl ConductOptions {
    /// Of a model's sampling and end tokens: 8 runs of 64 tokens, a long one of 512.
    pub fn new(sampling: SamplingParams, stop_ids: Vec<u32>, seed: u64) -> Self {
        Self { sampling, stop_ids, tokens: 64, runs: 8, free_run_tokens: 512, near_tie_nats: 0.1, seed }
    }

    fn params(&self, run: u64) -> SamplingParams {
        let temperature = if self.sampling.temperature > 0.0 { self.sampling.temperature } else { 1.0 };
        let (top_k, top_p, min_p) = (self.sampling.top_k, self.sampling.top_p, self.sampling.min_p);
        let seed = self.seed.wrapping_add(run.wrapping_mul(0x9E37_79B9)) >> 1;
        SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() }
    }
}

/// Starts the reference when it is needed.
pub type OpenReference<'a> = &'a mut dyn FnMut() -> Result<Box<dyn EngineLink>, Failure>;

/// Runs all checks on beginnings of `texts`.
///
/// # Errors
/// The engine or the reference fails, or answers outside the protocol.
pub fn conduct(
    engine: &mut dyn EngineLink,
    reference: OpenReference<'_>,
    texts: &[Text],
    options: &ConductOptions,
    progress: Progress<'_>,
) -> Result<Vec<Conduct>, EvalError> {
    let info = engine.info().map_err(|failure| failed("candidate", "opening it", failure))?;
    let limits = PlanLimits::of(&info);
    let texts: Vec<&Text> = texts.iter().filter(|text| text.from == 0 && text.ids.len() >= PROMPT_TOKENS).collect();
    let needed = PROMPT_TOKENS + options.tokens as usize + 1;
    if texts.is_empty() || needed > limits.context as usize {
        let why = format!("{needed} tokens of context are needed, the engine holds {}", limits.context);
        let skipped = |name: &str| Conduct::new(name, "", ConductState::NotMeasured, why.clone());
        return Ok(["sampled", "argmax", "logprobs", "stop", "free_run"].map(skipped).into());
    }
    let mut checks = Checks { engine, limits, texts, options };
    progress("quality: sampled (own samples against own rows)");
    let sampled = checks.sampled()?;
    progress("quality: argmax, logprobs, stop");
    let greedy = checks.greedy()?;
    let (argmax, logprobs, stop) = (checks.argmax(&greedy)?, checks.logprobs()?, checks.stop(&greedy)?);
    progress("quality: free_run (a long run, scored by the reference)");
    let free_run = checks.free_run(reference)?;
    Ok(vec![sampled, argmax, logprobs, stop, free_run])
}

struct Checks<'a> {
    engine: &'a mut dyn EngineLink,
    limits: PlanLimits,
    texts: Vec<&'a Text>,
    options: &'a ConductOptions,
}

/// A generation with what was told beside it.
struct Run {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    reason: FinishReason,
    usage: Usage,
}

impl Run {
    fn ids(&self) -> Vec<u32> {
        self.prompt.iter().chain(&self.tokens).copied().collect()
    }
}

impl Checks<'_> {
    fn prompt(&self, run: usize) -> Vec<u32> {
        let text = self.texts[run % self.texts.len()];
        // Each round starts elsewhere in the text, so that no two runs share a prompt.
        let from = (run / self.texts.len() * 37) % (text.ids.len() - PROMPT_TOKENS + 1);
        text.ids[from..from + PROMPT_TOKENS].to_vec()
    }

    fn generate(
        &mut self,
        prompt: Vec<u32>,
        sampling: SamplingParams,
        (max_tokens, stop_ids): (u32, Vec<u32>),
        top_logprobs: Option<u32>,
    ) -> Result<Run, EvalError> {
        let generation = Generation { prompt: prompt.clone(), sampling, max_tokens, stop_ids, top_logprobs };
        run(self.engine, "candidate", &generation)
    }

    fn sampled(&mut self) -> Result<Conduct, EvalError> {
        const WHAT: &str = "tokens sampled at the model's settings against the engine's own rows, fed back";
        let (mut sums, mut stops, mut firsts) = (Sums::default(), Sums::default(), Sums::default());
        for run in 0..self.options.runs {
            let (params, prompt) = (self.options.params(u64::from(run)), self.prompt(run as usize));
            let ends = (self.options.tokens, self.options.stop_ids.clone());
            let done = self.generate(prompt, params.clone(), ends, None)?;
            let (ids, from) = (done.ids(), done.prompt.len());
            let (ends, near) = (self.options.stop_ids.clone(), self.options.near_tie_nats);
            rows(self.engine, "candidate", &ids, from, 1, self.limits, &mut |at, row| {
                let kept = kept(&params, row)?;
                sums.add(&kept, row, ids[at], near, &params);
                stops.add_event(&kept, &ends, ids[at]);
                firsts.add_event(&kept, &likeliest(&kept), ids[at]);
                Ok(())
            })?;
        }
        let (z, z_stop, z_first) = (sums.z(), stops.z(), firsts.z());
        let figures = format!(
            "{} tokens, z = {z:+.1}, likeliest token z = {z_first:+.1}, {} outside the kept set, ends seen {} of {:.1} \
             expected (z = {z_stop:+.1})",
            sums.tokens, sums.outside, stops.seen, stops.expected
        );
        let wrong = if sums.outside > 0 {
            Some("tokens outside the set that temperature and filters keep")
        } else if z.abs().max(z_first.abs()) > LARGEST_Z {
            Some("its tokens are not drawn from its own distribution")
        } else if z_stop.abs() > LARGEST_Z {
            Some("it ends more or less often than its own distribution says")
        } else {
            None
        };
        Ok(verdict("sampled", WHAT, wrong, &figures))
    }

    fn greedy(&mut self) -> Result<Run, EvalError> {
        let prompt = self.prompt(0);
        self.generate(prompt, SamplingParams::default(), (self.options.tokens, Vec::new()), None)
    }

    fn argmax(&mut self, greedy: &Run) -> Result<Conduct, EvalError> {
        const WHAT: &str = "greedy tokens against the highest of the engine's own rows, fed back";
        let (ids, from, near) = (greedy.ids(), greedy.prompt.len(), self.options.near_tie_nats);
        let (mut ties, mut wrong) = (0, 0);
        rows(self.engine, "candidate", &ids, from, 1, self.limits, &mut |at, row| {
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let chosen = row.get(ids[at] as usize).copied().unwrap_or(f32::NEG_INFINITY);
            if chosen < best {
                let tie = f64::from(best - chosen) < near;
                (ties, wrong) = (ties + u32::from(tie), wrong + u32::from(!tie));
            }
            Ok(())
        })?;
        let figures = format!("{} tokens, {wrong} not the highest, {ties} near ties", greedy.tokens.len());
        Ok(verdict("argmax", WHAT, (wrong > 0).then_some("greedy tokens that are not the most likely"), &figures))
    }

    fn logprobs(&mut self) -> Result<Conduct, EvalError> {
        const WHAT: &str = "log-probs told with tokens against the rows the tokens came from";
        let (params, prompt) = (self.options.params(97), self.prompt(1));
        let done = self.generate(prompt, params, (self.options.tokens, Vec::new()), Some(3))?;
        if done.logprobs.is_empty() {
            let why = "the engine tells no log-probs".to_string();
            return Ok(Conduct::new("logprobs", WHAT, ConductState::NotMeasured, why));
        }
        if done.logprobs.len() != done.tokens.len() {
            let figures = format!("{} log-probs for {} tokens", done.logprobs.len(), done.tokens.len());
            return Ok(verdict("logprobs", WHAT, Some("not one a token"), &figures));
        }
        let (ids, from) = (done.ids(), done.prompt.len());
        let mut differences = Vec::new();
        rows(self.engine, "candidate", &ids, from, 1, self.limits, &mut |at, row| {
            let told = &done.logprobs[at - from];
            let of = |id: u32| row.get(id as usize).copied().unwrap_or(f32::NAN);
            differences.push(f64::from((told.logprob - of(ids[at])).abs()));
            differences.extend(told.top.iter().map(|(id, lp)| f64::from((lp - of(*id)).abs())));
            Ok(())
        })?;
        let at = |q| crate::stats::quantile(&differences, q).unwrap_or(f64::NAN);
        let (middle, most) = (at(0.5), at(0.9));
        let figures = format!("half differ by at most {middle:.1e} nats, nine in ten by {most:.1e}");
        let good = middle <= LOGPROB_MEDIAN && most <= LOGPROB_MOST;
        Ok(verdict("logprobs", WHAT, (!good).then_some("what it tells is not what it uses"), &figures))
    }

    fn stop(&mut self, greedy: &Run) -> Result<Conduct, EvalError> {
        const WHAT: &str = "ends at a stop token and at the most tokens asked for, and counts what it gave";
        let asked = self.options.tokens as usize;
        let mut wrong = None;
        if greedy.tokens.len() != asked || greedy.reason != FinishReason::Length {
            wrong = Some(format!("asked for {asked} tokens it gave {} ({:?})", greedy.tokens.len(), greedy.reason));
        } else if greedy.usage.generated_tokens as usize != greedy.tokens.len() {
            let told = greedy.usage.generated_tokens;
            wrong = Some(format!("it counts {told} tokens and gave {}", greedy.tokens.len()));
        }
        let one = self.generate(greedy.prompt.clone(), SamplingParams::default(), (1, Vec::new()), None)?;
        if one.tokens.len() != 1 {
            wrong = wrong.or(Some(format!("asked for one token it gave {}", one.tokens.len())));
        }
        let fresh = (4..greedy.tokens.len()).find(|i| !greedy.tokens[..*i].contains(&greedy.tokens[*i]));
        if let Some(stop) = fresh.map(|i| greedy.tokens[i]) {
            let ends = (self.options.tokens, vec![stop]);
            let done = self.generate(greedy.prompt.clone(), SamplingParams::default(), ends, None)?;
            let at = done.tokens.iter().position(|id| *id == stop);
            let ended = done.reason == FinishReason::Stop && at.is_some_and(|at| at + 1 == done.tokens.len());
            // Without the token there was nothing to stop at: a near tie may have led elsewhere.
            let never = at.is_none() && done.reason == FinishReason::Length && done.tokens.len() == asked;
            if !ended && !never {
                let place = at.map_or("nowhere".into(), |at| format!("at token {at}"));
                wrong = wrong.or(Some(format!(
                    "told to stop at {stop} (seen {place}) it gave {} tokens ({:?})",
                    done.tokens.len(),
                    done.reason
                )));
            }
        }
        let detail = format!("{asked} tokens, one token, and a stop token");
        Ok(match wrong {
            Some(wrong) => Conduct::new("stop", WHAT, ConductState::Fail, wrong),
            None => Conduct::new("stop", WHAT, ConductState::Pass, detail),
        })
    }

    fn free_run(&mut self, reference: OpenReference<'_>) -> Result<Conduct, EvalError> {
        const WHAT: &str = "a long run of the engine's own, scored by the reference, its loops put to the reference";
        let room = (self.limits.context as usize).saturating_sub(PROMPT_TOKENS + 1);
        let tokens = (self.options.free_run_tokens as usize).min(room) as u32;
        let (params, prompt) = (self.options.params(31), self.prompt(2));
        let done = self.generate(prompt, params.clone(), (tokens, Vec::new()), None)?;
        let mut judge = reference().map_err(|failure| failed("reference", "starting it", failure))?;
        let info = judge.info().map_err(|failure| failed("reference", "opening it", failure))?;
        let (ids, from, near) = (done.ids(), done.prompt.len(), self.options.near_tie_nats);
        let (mut sums, mut entropy) = (Sums::default(), 0.0);
        rows(judge.as_mut(), "reference", &ids, from, u32::MAX, PlanLimits::of(&info), &mut |at, row| {
            let kept = kept(&params, row)?;
            entropy += moments(&kept).0;
            sums.add(&kept, row, ids[at], near, &params);
            Ok(())
        })?;
        let z = sums.z();
        let mean_entropy = entropy / f64::from(sums.tokens.max(1));
        let mut figures = format!(
            "{} tokens, reference z = {z:+.1}, its mean entropy {mean_entropy:.2} nats, {:.0} % distinct fours",
            sums.tokens,
            100.0 * distinct_fours(&done.tokens)
        );
        let mut wrong = (z < -LARGEST_Z).then_some("its tokens are likelier than the model's own samples");
        if let Some(Loop { start, period }) = find_loop(&done.tokens) {
            let loops = reference_loops(judge.as_mut(), &done, start, &params)?;
            figures.push_str(&format!(
                ", a loop of {period} from token {start}; {loops} of {REFERENCE_SAMPLES} runs of the reference from there \
                 loop too"
            ));
            if loops == 0 {
                wrong = wrong.or(Some("it loops where the model does not"));
            }
        }
        Ok(verdict("free_run", WHAT, wrong, &figures))
    }
}

fn verdict(check: &str, what: &str, wrong: Option<&str>, figures: &str) -> Conduct {
    match wrong {
        Some(wrong) => Conduct::new(check, what, ConductState::Fail, format!("{wrong}: {figures}")),
        None => Conduct::new(check, what, ConductState::Pass, figures.into()),
    }
}

fn run(engine: &mut dyn EngineLink, who: &str, generation: &Generation) -> Result<Run, EvalError> {
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    let ended = engine.generate(generation, &mut |ids, told| {
        tokens.extend_from_slice(ids);
        logprobs.extend_from_slice(told);
    });
    let (reason, usage) = ended.map_err(|failure| failed(who, "generating", failure))?;
    if tokens.is_empty() {
        return Err(EvalError::Protocol {
            who: who.into(),
            doing: "generating".into(),
            what: "it ended a generation without a token".into(),
        });
    }
    Ok(Run { prompt: generation.prompt.clone(), tokens, logprobs, reason, usage })
}

/// Takes the row that chose the token at an index.
type TakeRow<'a> = &'a mut dyn FnMut(usize, &[f32]) -> Result<(), String>;

/// The rows that chose `ids[from..]`, each with the index of the token it chose, in steps of `width`.
fn rows(
    engine: &mut dyn EngineLink,
    who: &str,
    ids: &[u32],
    from: usize,
    width: u32,
    limits: PlanLimits,
    take: TakeRow<'_>,
) -> Result<(), EvalError> {
    let item = |take: usize, rows| vec![ScoreItem { seq: 0, take: take as u32, rows, ..ScoreItem::default() }];
    let width = width.min(limits.step_tokens).max(1) as usize;
    let (first, last) = (from - 1, ids.len() - 1);
    let mut steps = Vec::new();
    for (begin, end, size, wanted) in [(0, first, limits.step_tokens as usize, false), (first, last, width, true)] {
        let mut at = begin;
        while at < end {
            let size = size.min(end - at);
            steps.push(item(size, wanted));
            at += size;
        }
    }
    let plan = ScorePlan { sequences: vec![ScoreSequence { ids: ids.to_vec(), ..ScoreSequence::default() }], steps };
    let doing = "feeding a generation back";
    let (mut trouble, mut seen) = (None, 0);
    let outcome = engine.score(&plan, &mut |row, values| {
        seen += 1;
        if trouble.is_none() {
            trouble = take(row.position as usize + 1, values).err();
        }
    });
    outcome.map_err(|failure| failed(who, doing, failure))?;
    let protocol = |what: String| EvalError::Protocol { who: who.into(), doing: doing.into(), what };
    match trouble {
        Some(what) => Err(protocol(what)),
        None if seen != last - first => Err(protocol(format!("{seen} rows where {} were asked for", last - first))),
        None => Ok(()),
    }
}

fn kept(params: &SamplingParams, row: &[f32]) -> Result<Distribution, String> {
    distribution(params, row).map_err(|error| format!("a row is no row of log-probs: {error}"))
}

/// The likeliest token of a distribution.
fn likeliest(kept: &Distribution) -> [u32; 1] {
    let best = kept.entries().iter().max_by(|a, b| a.1.total_cmp(&b.1));
    [best.map_or(u32::MAX, |(id, _)| *id)]
}

/// Entropy of a distribution and the variance of −ln p.
fn moments(kept: &Distribution) -> (f64, f64) {
    let (mut mean, mut square) = (0.0, 0.0);
    for (_, p) in kept.entries().iter().filter(|(_, p)| *p > 0.0) {
        let nats = -p.ln();
        mean += p * nats;
        square += p * nats * nats;
    }
    (mean, (square - mean * mean).max(0.0))
}

/// Sums over the tokens of runs.
#[derive(Default)]
struct Sums {
    surplus: f64,
    variance: f64,
    tokens: u32,
    outside: u32,
    seen: u32,
    expected: f64,
}

impl Sums {
    fn add(&mut self, kept: &Distribution, row: &[f32], token: u32, near_tie: f64, params: &SamplingParams) {
        let (entropy, variance) = moments(kept);
        let lowest = kept.entries().iter().map(|(_, p)| *p).filter(|p| *p > 0.0).fold(1.0, f64::min);
        let p = match kept.probability(token) {
            0.0 => {
                let value = |id: u32| row.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
                let edge = kept.entries().iter().map(|(id, _)| value(*id)).fold(f32::INFINITY, f32::min);
                // At the edge of the kept set a tie may fall either way.
                let tie = f64::from(edge - value(token)) < near_tie * f64::from(params.temperature.max(1.0));
                self.outside += u32::from(!tie);
                lowest
            }
            p => p,
        };
        self.tokens += 1;
        self.surplus += -p.ln() - entropy;
        self.variance += variance;
    }

    /// Counts a token as an event of probability Σ p(ends).
    fn add_event(&mut self, kept: &Distribution, ends: &[u32], token: u32) {
        let p: f64 = ends.iter().map(|end| kept.probability(*end)).sum();
        self.expected += p;
        self.variance += p * (1.0 - p);
        self.seen += u32::from(ends.contains(&token));
        self.surplus = f64::from(self.seen) - self.expected;
        self.tokens += 1;
    }

    fn z(&self) -> f64 {
        // An event of almost no probability has almost no variance: one of them must not be an alarm by itself.
        self.surplus / self.variance.max(0.05).sqrt()
    }
}

/// A loop in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    start: usize,
    period: usize,
}

/// The first place from which a run repeats itself: three times over, and at least for 48 tokens.
fn find_loop(tokens: &[u32]) -> Option<Loop> {
    (1..=LONGEST_PERIOD.min(tokens.len() / 2))
        .filter_map(|period| {
            let mut run = 0;
            for i in period..tokens.len() {
                run = if tokens[i] == tokens[i - period] { run + 1 } else { 0 };
                if run >= (2 * period).max(48) {
                    return Some(Loop { start: i + 1 - run - period, period });
                }
            }
            None
        })
        .min_by_key(|found| (found.start, found.period))
}

/// Share of four-token groups that are distinct.
fn distinct_fours(tokens: &[u32]) -> f64 {
    let all: Vec<&[u32]> = tokens.windows(4).collect();
    let distinct: std::collections::HashSet<&[u32]> = all.iter().copied().collect();
    distinct.len() as f64 / all.len().max(1) as f64
}

/// How many runs of the reference from where the loop begins loop too.
fn reference_loops(
    judge: &mut dyn EngineLink,
    done: &Run,
    start: usize,
    params: &SamplingParams,
) -> Result<u64, EvalError> {
    let rest = (done.tokens.len() - start).min(3 * LONGEST_PERIOD) as u32;
    let prompt: Vec<u32> = done.prompt.iter().chain(&done.tokens[..start]).copied().collect();
    let mut loops = 0;
    for sample in 1..=REFERENCE_SAMPLES {
        let sampling = SamplingParams { seed: params.seed.wrapping_add(sample), ..params.clone() };
        let generation = Generation { prompt: prompt.clone(), sampling, max_tokens: rest, ..Generation::default() };
        loops += u64::from(find_loop(&run(judge, "reference", &generation)?.tokens).is_some());
    }
    Ok(loops)
}

fn failed(who: &str, doing: &str, failure: Failure) -> EvalError {
    EvalError::Engine { who: who.into(), doing: doing.into(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn noise(count: usize) -> Vec<u32> {
        let mut rng = Rng::new(8);
        (0..count).map(|_| rng.below(500) as u32).collect()
    }

    #[test]
    fn loops_are_found_where_they_begin() {
        assert_eq!(find_loop(&noise(600)), None);
        let mut forced = noise(100);
        forced.extend([7u32; 60]);
        assert_eq!(find_loop(&forced), Some(Loop { start: 100, period: 1 }));
        let phrase = noise(200);
        let slow: Vec<u32> = noise(40).into_iter().map(|id| id + 1_000).chain(phrase.repeat(3)).collect();
        assert_eq!(find_loop(&slow), Some(Loop { start: 40, period: 200 }));
        // A list whose lines begin alike is no loop.
        let list: Vec<u32> = (0..60).flat_map(|i| [1, 2, 3, 1_000 + i]).collect();
        assert_eq!(find_loop(&list), None);
        assert!(distinct_fours(&slow) < 0.6 && distinct_fours(&noise(600)) > 0.99);
    }

    #[test]
    fn a_sampler_that_is_right_is_a_normal_number_and_a_cold_one_is_not() {
        let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        let mut rng = Rng::new(21);
        let z = |temperature: f64, rng: &mut Rng| {
            let mut sums = Sums::default();
            for _ in 0..800 {
                let row: Vec<f32> = (0..200).map(|_| (2.0 * rng.normal()) as f32).collect();
                let drawn = SamplingParams { temperature: temperature as f32, ..params.clone() };
                let token = distribution(&drawn, &row).unwrap().at(rng.uniform()).unwrap();
                sums.add(&distribution(&params, &row).unwrap(), &row, token, 0.1, &params);
            }
            sums.z()
        };
        assert!((0..20).all(|_| z(1.0, &mut rng).abs() < LARGEST_Z));
        assert!(z(0.8, &mut rng) < -LARGEST_Z);
    }
}
