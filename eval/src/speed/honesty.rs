//! Speed that is not what it says: answers remembered, prefixes kept without a word, public prompts known beforehand, work
//! left for after the answer, and a burst sold as a pace.
//!
//! Each is one comparison of medians over runs whose order is drawn, by the evaluator's own clock. An effect counts when the
//! medians differ by more than a tenth *and* every pair has its sign, over six pairs and then over six more: twelve pairs
//! agree by luck once in 4,096. On a machine that is not steady such a doubt is a hint, as a share is.

use crate::Progress;
use crate::census::Census;
use crate::clock::Clock;
use crate::error::EvalError;
use crate::link::{EngineLink, Generation};
use crate::rng::Rng;
use crate::stats::median;
use crit_core::sampling::SamplingParams;
use serde::{Deserialize, Serialize};

/// Pairs of a round.
const PAIRS: usize = 6;
/// Rounds an effect must last before it is believed.
const ROUNDS: usize = 2;
/// Medians must differ by this share.
const LEAST: f64 = 0.10;
/// The same between texts where drafts were accepted.
const LEAST_DRAFTING: f64 = 0.50;
/// Time watched after an answer.
const QUIET_S: f64 = 0.1;
/// Processor time an engine may use in the quiet after an answer, as a share of one core: timers, not work.
const QUIET_SHARE: f64 = 0.2;
/// Rest before the pace is looked at.
const REST_S: f64 = 2.0;
/// A pace below this share of the burst is the speed that counts.
const PACE: f64 = 0.85;

/// How a comparison is made.
#[derive(Clone, Debug, PartialEq)]
pub struct HonestyOptions {
    /// Prompts anyone can know: beginnings of the suite's own texts.
    pub public: Vec<Vec<u32>>,
    /// Prompts drawn after the engine was fixed, of the same kind and length.
    pub secret: Vec<Vec<u32>>,
    /// Tokens generated each time.
    pub tokens: u32,
    /// Seconds of uninterrupted work for the pace; 0 leaves it out.
    pub sustained_s: f64,
    /// Decides the order.
    pub seed: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Honesty {
    /// Why the speed does not count; empty for an engine that is what it says.
    pub doubts: Vec<String>,
    /// Decode speed of a prompt's second run over its first, medians; about 1.
    pub repeat_ratio: Option<f64>,
    /// Time to the first token of a first run over a second one's, where no cached tokens were told; about 1.
    pub unsaid_cache_ratio: Option<f64>,
    /// Decode speed on public prompts over secret ones; about 1.
    pub public_ratio: Option<f64>,
    /// Tokens a second over the uninterrupted time.
    pub sustained_tok_s: Option<f64>,
    /// Tokens a second of the first of it.
    pub burst_tok_s: Option<f64>,
    /// Whether the pace falls below the burst so far that the pace is the speed.
    pub pace_counts: bool,
}

/// Looks for all of it.
///
/// # Errors
/// The engine fails.
pub fn examine(
    engine: &mut dyn EngineLink,
    options: &HonestyOptions,
    clock: &dyn Clock,
    census: &mut dyn Census,
    progress: Progress<'_>,
) -> Result<Honesty, EvalError> {
    let mut examiner = Examiner { engine, clock, tokens: options.tokens.max(2), seed: options.seed };
    let mut found = Honesty::default();
    progress("speed: does it remember, does it know the public prompts");
    examiner.repeats(options, &mut found)?;
    examiner.public(options, &mut found)?;
    progress("speed: does it work on after its answer");
    examiner.quiet(options, census, &mut found)?;
    if options.sustained_s > 0.0 {
        progress(&format!("speed: {:.0} s without a pause", options.sustained_s));
        examiner.pace(options, &mut found)?;
    }
    Ok(found)
}

/// A run by the evaluator's clock.
struct Run {
    first_s: f64,
    decode_s: f64,
    tokens: u32,
    cached: u32,
    accepted: u32,
}

struct Examiner<'a> {
    engine: &'a mut dyn EngineLink,
    clock: &'a dyn Clock,
    tokens: u32,
    seed: u64,
}

impl Examiner<'_> {
    fn run(&mut self, prompt: &[u32]) -> Result<Run, EvalError> {
        let generation = Generation {
            prompt: prompt.to_vec(),
            sampling: SamplingParams::default(),
            max_tokens: self.tokens,
            ..Generation::default()
        };
        let (clock, start) = (self.clock, self.clock.now_s());
        let (mut first, mut last, mut tokens) = (None, start, 0);
        let ended = self.engine.generate(&generation, &mut |ids, _| {
            if !ids.is_empty() {
                last = clock.now_s();
                first.get_or_insert(last);
                tokens += ids.len() as u32;
            }
        });
        let (_, usage) = ended.map_err(|failure| EvalError::Engine {
            who: "candidate".into(),
            doing: "looking at what it remembers".into(),
            failure,
        })?;
        let first_s = first.unwrap_or(last);
        Ok(Run {
            first_s: first_s - start,
            decode_s: last - first_s,
            tokens,
            cached: usage.cached_tokens,
            accepted: usage.accepted_tokens,
        })
    }

    fn repeats(&mut self, options: &HonestyOptions, found: &mut Honesty) -> Result<(), EvalError> {
        let (mut decode, mut first) = (Vec::new(), Vec::new());
        for round in options.secret.chunks(PAIRS).take(ROUNDS) {
            for prompt in round {
                let (once, again) = (self.run(prompt)?, self.run(prompt)?);
                decode.push((once.decode_s, again.decode_s));
                if again.cached == 0 {
                    first.push((once.first_s, again.first_s));
                }
            }
            if !faster(&decode, LEAST) && !faster(&first, LEAST) {
                break;
            }
        }
        found.repeat_ratio = ratio(&decode);
        found.unsaid_cache_ratio = ratio(&first);
        if sure(&decode, LEAST) {
            found.doubts.push("it decodes a prompt faster the second time: it remembers answers".into());
        }
        if sure(&first, LEAST) {
            found.doubts.push(
                "it reads a prompt faster the second time and tells no cached tokens: it keeps what it read".into(),
            );
        }
        Ok(())
    }

    fn public(&mut self, options: &HonestyOptions, found: &mut Honesty) -> Result<(), EvalError> {
        let mut rng = Rng::new(self.seed);
        let (mut pairs, mut drafts) = (Vec::new(), false);
        // Past the ones already run: a prompt seen once is no secret any more.
        let secret: Vec<&Vec<u32>> = options.secret.iter().skip(ROUNDS * PAIRS).collect();
        let both: Vec<(&Vec<u32>, &Vec<u32>)> = options.public.iter().zip(secret).collect();
        for round in both.chunks(PAIRS).take(ROUNDS) {
            for (public, secret) in round {
                let (secret_s, public_s) = if rng.coin() {
                    let first = self.run(secret)?;
                    (first, self.run(public)?)
                } else {
                    let first = self.run(public)?;
                    (self.run(secret)?, first)
                };
                drafts |= secret_s.accepted + public_s.accepted > 0;
                pairs.push((secret_s.decode_s, public_s.decode_s));
            }
            if !faster(&pairs, LEAST) {
                break;
            }
        }
        found.public_ratio = ratio(&pairs);
        // What a drafter guesses hangs on the text; only far more on every public one than on a secret one is suspicious.
        if sure(&pairs, if drafts { LEAST_DRAFTING } else { LEAST }) {
            found.doubts.push("it decodes the suite's public prompts faster than secret ones like them".into());
        }
        Ok(())
    }

    fn quiet(
        &mut self,
        options: &HonestyOptions,
        census: &mut dyn Census,
        found: &mut Honesty,
    ) -> Result<(), EvalError> {
        let mut busy = Vec::new();
        for prompt in options.public.iter().take(PAIRS) {
            self.run(prompt)?;
            let Some(before) = census.cpu_s() else { return Ok(()) };
            self.clock.wait_s(QUIET_S);
            let Some(after) = census.cpu_s() else { return Ok(()) };
            busy.push((after - before) / QUIET_S);
        }
        if median(&busy).is_some_and(|share| share > QUIET_SHARE) {
            let share = median(&busy).unwrap_or(0.0) * 100.0;
            found
                .doubts
                .push(format!("it computes on after its answer ({share:.0} % of a core): work outside the clock"));
        }
        Ok(())
    }

    fn pace(&mut self, options: &HonestyOptions, found: &mut Honesty) -> Result<(), EvalError> {
        // A burst is what comes after a rest.
        self.clock.wait_s(REST_S);
        let begun = self.clock.now_s();
        let (mut speeds, mut tokens, mut spent_s) = (Vec::new(), 0, 0.0);
        let prompts = options.secret.iter().chain(&options.public).cycle();
        for prompt in prompts {
            let run = self.run(prompt)?;
            speeds.push(f64::from(run.tokens.saturating_sub(1)) / run.decode_s.max(1e-9));
            (tokens, spent_s) = (tokens + run.tokens.saturating_sub(1), spent_s + run.decode_s);
            if self.clock.now_s() - begun >= options.sustained_s {
                break;
            }
        }
        // The last half, when clocks and temperature have settled, against the first runs.
        let half = &speeds[speeds.len() / 2..];
        let first = &speeds[..speeds.len().min(3)];
        (found.sustained_tok_s, found.burst_tok_s) = (median(half), median(first));
        if let (Some(pace), Some(burst)) = (found.sustained_tok_s, found.burst_tok_s) {
            found.pace_counts = pace < PACE * burst;
        }
        Ok(())
    }
}

/// Median of the first over median of the second.
fn ratio(pairs: &[(f64, f64)]) -> Option<f64> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    Some(median(&a)? / median(&b)?.max(1e-12))
}

/// Whether the second of each pair is always shorter, and the median by more than a share.
fn faster(pairs: &[(f64, f64)], least: f64) -> bool {
    !pairs.is_empty() && pairs.iter().all(|(a, b)| b < a) && ratio(pairs).is_some_and(|r| r > 1.0 + least)
}

/// The same over all rounds.
fn sure(pairs: &[(f64, f64)], least: f64) -> bool {
    pairs.len() >= ROUNDS * PAIRS && faster(pairs, least)
}
