//! Speed straight through the engine protocol: `-p` prompt tokens read at once, `-n` tokens decoded one after the
//! other, both at depth `-d`, as `llama-bench` measures.
//!
//! Prompts are random token ids, different in every repeat, generation is greedy and ignores end tokens. Prefill is
//! the time from sending the request to its first token; at a depth, the time of the same request without the `-p`
//! tokens is taken off. Decode is the time from the first token to the last; where this process saw the first token
//! clearly later than a whole request for one token takes, that time counts instead.

use super::warm::warm_up;
use super::{CeilingInput, first_token_s, median_share};
use crate::Progress;
use crate::ceiling::{Share, passes_between, split_passes};
use crate::clock::{Clock, MachineClock};
use crate::error::EvalError;
use crate::link::{EngineLink, Generation};
use crate::rng::Rng;
use crate::stats::Measured;
use crit_core::error::Failure;
use crit_core::protocol::PassCount;
use crit_core::sampling::SamplingParams;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectOptions {
    /// Prompt tokens (`-p`).
    pub prompt_tokens: u32,
    /// Tokens to decode (`-n`).
    pub generate_tokens: u32,
    /// Tokens in the context before either (`-d`).
    pub depth: u32,
    /// Fresh repeats.
    pub repeats: u32,
    /// Longest warm-up.
    pub warm_up_limit: Duration,
    /// Seed of the random prompts.
    pub seed: u64,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self {
            prompt_tokens: 512,
            generate_tokens: 128,
            depth: 0,
            repeats: 5,
            warm_up_limit: Duration::from_secs(20),
            seed: 1,
        }
    }
}

/// What was measured. The six figures are medians over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DirectSpeed {
    /// Prompt tokens read a second.
    pub prefill_tok_s: Option<f64>,
    /// Tokens decoded a second.
    pub decode_tok_s: Option<f64>,
    /// Prompt tokens a second that the machine allows this engine.
    pub prefill_ceiling_tok_s: Option<f64>,
    /// Decoded tokens a second that the machine allows this engine.
    pub decode_ceiling_tok_s: Option<f64>,
    /// Prefill speed over its ceiling.
    pub prefill_share: Option<f64>,
    /// Decode speed over its ceiling.
    pub decode_share: Option<f64>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Tokens decoded.
    pub generate_tokens: u32,
    /// Tokens in the context before.
    pub depth: u32,
    /// Prefill with its samples.
    pub prefill: Option<Measured>,
    /// Decode with its samples.
    pub decode: Option<Measured>,
    /// Prefill beside its ceiling.
    pub prefill_detail: Option<Share>,
    /// Decode beside its ceiling.
    pub decode_detail: Option<Share>,
    /// Tokens decoded a pass: above 1 when drafts were accepted.
    pub tokens_per_pass: Option<f64>,
    /// Whether times had stopped falling when measuring began.
    pub warm: bool,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// Measures an engine.
///
/// # Errors
/// The request does not fit the engine, or the engine fails.
pub fn measure(
    engine: &mut dyn EngineLink,
    options: &DirectOptions,
    ceiling: Option<CeilingInput<'_>>,
    progress: Progress<'_>,
) -> Result<DirectSpeed, EvalError> {
    measure_by(&MachineClock::start(), engine, options, ceiling, progress)
}

/// The same by another clock.
///
/// # Errors
/// As [`measure`].
pub fn measure_by(
    clock: &dyn Clock,
    engine: &mut dyn EngineLink,
    options: &DirectOptions,
    ceiling: Option<CeilingInput<'_>>,
    progress: Progress<'_>,
) -> Result<DirectSpeed, EvalError> {
    let info = engine.info().map_err(|failure| failed("opening it", failure))?;
    check(options, info.max_context)?;
    let mut bench = Bench { clock, engine, vocab: info.vocab, rng: Rng::new(options.seed), notes: Vec::new() };
    progress("speed: warming up");
    let warm = bench.warm_up(options)?;
    let prefill = bench.prefill(options, ceiling, progress)?;
    let decode = bench.decode(options, ceiling, progress)?;
    let mut notes = bench.notes;
    if !warm {
        notes.push("times had not settled when the warm-up limit was reached".into());
    }
    notes.dedup();
    Ok(DirectSpeed {
        prefill_tok_s: prefill.speed.as_ref().map(|m| m.median),
        decode_tok_s: decode.speed.as_ref().map(|m| m.median),
        prefill_ceiling_tok_s: prefill.share.as_ref().map(|s| s.ceiling_tok_s),
        decode_ceiling_tok_s: decode.share.as_ref().map(|s| s.ceiling_tok_s),
        prefill_share: prefill.share.as_ref().map(|s| s.share),
        decode_share: decode.share.as_ref().map(|s| s.share),
        prompt_tokens: options.prompt_tokens,
        generate_tokens: options.generate_tokens,
        depth: options.depth,
        prefill: prefill.speed,
        decode: decode.speed,
        prefill_detail: prefill.share,
        decode_detail: decode.share,
        tokens_per_pass: decode.tokens_per_pass,
        warm,
        notes,
    })
}

fn check(options: &DirectOptions, context: u32) -> Result<(), EvalError> {
    let needed = u64::from(options.depth) + u64::from(options.prompt_tokens.max(options.generate_tokens)) + 1;
    let refuse = |what: String, hint: &str| Err(EvalError::Request { what, hint: hint.into() });
    if needed > u64::from(context) {
        return refuse(
            format!("{needed} tokens of context are needed and the engine holds {context}"),
            "lower -p, -n or -d, or raise `context` in engine.json",
        );
    }
    if options.repeats == 0 || options.prompt_tokens == 0 && options.generate_tokens == 0 {
        return refuse("nothing to measure: no repeats, or neither prompt nor generation".into(), "give -p or -n");
    }
    Ok(())
}

/// A generation as this process saw it.
struct Run {
    first_s: f64,
    last_s: f64,
    tokens: u64,
    passes: Vec<PassCount>,
}

#[derive(Default)]
struct Phase {
    speed: Option<Measured>,
    share: Option<Share>,
    tokens_per_pass: Option<f64>,
}

struct Bench<'a> {
    clock: &'a dyn Clock,
    engine: &'a mut dyn EngineLink,
    vocab: u32,
    rng: Rng,
    notes: Vec<String>,
}

impl Bench<'_> {
    fn warm_up(&mut self, options: &DirectOptions) -> Result<bool, EvalError> {
        let prompt = options.prompt_tokens.clamp(1, 64);
        let tokens = options.generate_tokens.clamp(1, 16);
        warm_up(options.warm_up_limit, || self.run(prompt, tokens).map(|run| run.last_s))
    }

    fn prefill(
        &mut self,
        options: &DirectOptions,
        ceiling: Option<CeilingInput<'_>>,
        progress: Progress<'_>,
    ) -> Result<Phase, EvalError> {
        let (mut speeds, mut shares) = (Vec::new(), Vec::new());
        let tokens = options.prompt_tokens;
        for repeat in 1..=if tokens == 0 { 0 } else { options.repeats } {
            progress(&format!("speed: prefill of {tokens} tokens, {repeat} of {}", options.repeats));
            let before = if options.depth > 0 { Some(self.run(options.depth, 1)?) } else { None };
            let run = self.run(options.depth + tokens, 1)?;
            let seconds = run.first_s - before.as_ref().map_or(0.0, |run| run.first_s);
            if seconds <= 0.0 {
                self.notes.push("a prefill at depth took no longer than the depth alone: too noisy, left out".into());
                continue;
            }
            speeds.push(f64::from(tokens) / seconds);
            if let Some(ceiling) = ceiling {
                let earlier = before.map_or_else(Vec::new, |run| run.passes);
                shares.extend(ceiling.share_between(u64::from(tokens), seconds, &run.passes, &earlier)?);
            }
        }
        Ok(Phase { speed: Measured::of(speeds), share: median_share(shares), tokens_per_pass: None })
    }

    fn decode(
        &mut self,
        options: &DirectOptions,
        ceiling: Option<CeilingInput<'_>>,
        progress: Progress<'_>,
    ) -> Result<Phase, EvalError> {
        let (mut speeds, mut shares, mut per_pass) = (Vec::new(), Vec::new(), Vec::new());
        for repeat in 1..=if options.generate_tokens == 0 { 0 } else { options.repeats } {
            progress(&format!("speed: decode of {} tokens, {repeat} of {}", options.generate_tokens, options.repeats));
            let prompt = options.depth.max(1);
            let one_token_s = self.run(prompt, 1)?.last_s;
            let run = self.run(prompt, options.generate_tokens + 1)?;
            let first_s = first_token_s(run.first_s, run.last_s, run.tokens, one_token_s);
            let (tokens, seconds) = (run.tokens.saturating_sub(1), run.last_s - first_s);
            if tokens == 0 || seconds <= 0.0 {
                self.notes.push("a decode brought all its tokens at once: no time to measure".into());
                continue;
            }
            speeds.push(tokens as f64 / seconds);
            let passes = decode_passes(&run.passes, prompt);
            let count: u64 = passes.iter().map(|group| group.count).sum();
            if count > 0 {
                per_pass.push(tokens as f64 / count as f64);
            }
            if let Some(ceiling) = ceiling {
                shares.extend(ceiling.share(tokens, seconds, &passes)?);
            }
        }
        Ok(Phase {
            speed: Measured::of(speeds),
            share: median_share(shares),
            tokens_per_pass: crate::stats::median(&per_pass),
        })
    }

    fn run(&mut self, prompt_tokens: u32, max_tokens: u32) -> Result<Run, EvalError> {
        let prompt = (0..prompt_tokens).map(|_| self.rng.below(self.vocab.max(1) as usize) as u32).collect();
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let generation = Generation { prompt, sampling, max_tokens, ..Generation::default() };
        let before = self.passes()?;
        let (clock, start_s) = (self.clock, self.clock.now_s());
        let (mut first_s, mut last_s, mut tokens) = (None, 0.0, 0u64);
        let outcome = self.engine.generate(&generation, &mut |ids, _| {
            if ids.is_empty() {
                return;
            }
            last_s = clock.now_s() - start_s;
            first_s.get_or_insert(last_s);
            tokens += ids.len() as u64;
        });
        let (_, usage) = outcome.map_err(|failure| failed("generating", failure))?;
        let passes = passes_between(&before, &self.passes()?);
        if usage.cached_tokens > 0 {
            self.notes.push(format!("{} prompt tokens came from the prefix cache", usage.cached_tokens));
        }
        let Some(first_s) = first_s else {
            return Err(EvalError::Protocol {
                who: "candidate".into(),
                doing: "generating".into(),
                what: "it ended a generation without a token".into(),
            });
        };
        Ok(Run { first_s, last_s, tokens, passes })
    }

    fn passes(&mut self) -> Result<Vec<PassCount>, EvalError> {
        Ok(self.engine.stats().map_err(|failure| failed("reading its counters", failure))?.passes)
    }
}

/// The passes that ran while the decode clock did. A prompt of one token is read by a pass that looks like decoding.
fn decode_passes(passes: &[PassCount], prompt_tokens: u32) -> Vec<PassCount> {
    let (_, mut decode) = split_passes(passes);
    if prompt_tokens == 1
        && let Some(first) = decode.iter_mut().find(|group| group.seqs.len() == 1 && group.seqs[0].past == 0)
    {
        first.count -= 1;
    }
    decode.retain(|group| group.count > 0);
    decode
}

fn failed(doing: &str, failure: Failure) -> EvalError {
    EvalError::Engine { who: "candidate".into(), doing: doing.into(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Scripted};
    use crit_core::model::program::SeqAxes;

    fn options() -> DirectOptions {
        DirectOptions { prompt_tokens: 32, generate_tokens: 10, repeats: 3, ..DirectOptions::default() }
    }

    #[test]
    fn speed_is_taken_from_this_process_clock() {
        // Passes of 5 ms: 32 prompt tokens in one of them, ten tokens in ten.
        let mut engine = Scripted::slow(Duration::from_millis(5));
        let speed = measure(&mut engine, &options(), None, &|_| {}).unwrap();
        let (prefill, decode) = (speed.prefill_tok_s.unwrap(), speed.decode_tok_s.unwrap());
        // A sleep may be longer than asked for on a busy machine, never shorter.
        assert!((1_600.0..=6_400.0).contains(&prefill), "{prefill}");
        assert!((50.0..=200.0).contains(&decode), "{decode}");
        assert_eq!((speed.tokens_per_pass, speed.prefill_share), (Some(1.0), None));
        assert_eq!(speed.decode.unwrap().samples.len(), 3);
    }

    #[test]
    fn the_first_pass_of_a_one_token_prompt_is_not_decoding() {
        let pass = |past, count| PassCount { seqs: vec![SeqAxes { tokens: 1, past, rows: 1 }], count, time_us: 0 };
        assert_eq!(decode_passes(&[pass(0, 64), pass(64, 5)], 1), vec![pass(0, 63), pass(64, 5)]);
        assert_eq!(decode_passes(&[pass(0, 1)], 1), vec![]);
    }

    #[test]
    fn a_first_token_seen_late_does_not_make_decoding_faster() {
        // A hundred tokens in a second, one token in 20 ms; the reader woke when all but the last tenth was over.
        assert_eq!(first_token_s(0.9, 1.0, 100, 0.02), 0.02);
        assert_eq!(first_token_s(0.021, 1.0, 100, 0.02), 0.021);
        assert_eq!(first_token_s(0.015, 1.0, 100, 0.02), 0.015);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let mut engine = Scripted::new(Fault::None);
        let wide = DirectOptions { depth: 4_090, ..options() };
        let error = measure(&mut engine, &wide, None, &|_| {}).unwrap_err().to_string();
        assert!(error.contains("4123") && error.contains("4096"), "{error}");
        let nothing = DirectOptions { prompt_tokens: 0, generate_tokens: 0, ..options() };
        assert!(measure(&mut engine, &nothing, None, &|_| {}).is_err());
    }

    #[test]
    fn a_phase_not_asked_for_has_no_figure() {
        let decode_only = DirectOptions { prompt_tokens: 0, ..options() };
        let speed = measure(&mut Scripted::slow(Duration::from_millis(1)), &decode_only, None, &|_| {}).unwrap();
        assert_eq!(speed.prefill_tok_s, None);
        assert!(speed.decode_tok_s.is_some());
    }
}
