//! Two engines against each other: paired sessions in random order, each in a fresh process, judged by
//! [`crit_eval::decision`]. What `ablate`, `seal` and `crit bench` compare with.
//!
//! A session is several turns of one conversation through the engine protocol, each engine decoding its own output; end
//! tokens are ignored, so that all do the same work. Both engines of a pair get the same text, every pair another, drawn
//! after both were fixed. An engine that takes long to load is kept and gets a fresh context instead of a fresh process.

use crate::error::ToolError;
use crate::floor;
use crate::host::Host;
use crate::{Context, judge};
use crit_core::protocol::Generate;
use crit_core::protocol::spawn::EngineCommand;
use crit_eval::decision::{Comparison, Decision, Pair, Side, Turn, compare, noise_floor};
use crit_eval::rng::Rng;
use std::path::Path;
use std::time::Instant;

/// The work of a session, as noise is kept by.
const WORK: &str = "session/2";
/// Turns of a session: from the second on, its beginning is known to a prefix cache.
pub const TURNS: u32 = 3;
/// Prompt tokens of a turn.
const PROMPT_TOKENS: usize = 96;
/// Tokens generated in a turn.
pub const GENERATED: u32 = 48;
/// An engine that loads longer than this is kept between sessions: twenty loads would take longer than what they are for.
const LONG_LOAD_S: f64 = 5.0;

/// An engine of a duel: how to start it, its config written where it stays.
#[derive(Clone, Debug)]
pub struct Contender {
    /// How to start it.
    pub command: EngineCommand,
}

/// What a duel says.
#[derive(Clone, Debug)]
pub struct Duelled {
    /// The decision.
    pub decision: Decision,
    /// Tokens of a session, read and generated.
    pub tokens: u64,
    /// Whether every session had a fresh process.
    pub fresh_processes: bool,
}

/// Where duels over one checkpoint take place.
pub struct Arena<'a> {
    context: &'a Context,
    text: Vec<u32>,
}

impl<'a> Arena<'a> {
    /// For engines of the checkpoint at `model`.
    ///
    /// # Errors
    /// It has no tokenizer.
    pub fn new(context: &'a Context, model: &Path) -> Result<Self, ToolError> {
        let text = judge::texts(model)?.into_iter().flat_map(|text| text.ids).collect();
        Ok(Self { context, text })
    }

    /// Runs one engine against itself; returns the machine's floor with what was seen.
    ///
    /// # Errors
    /// The engine fails.
    pub fn noise(&self, one: &Contender, pairs: usize, seed: u64) -> Result<f64, ToolError> {
        let mut ring = Ring::new(self, [one, one]);
        let comparison = Comparison { pairs, noise_floor: f64::MAX, seed };
        // With an endless floor every outcome is SAME: nothing is doubled, only the pairs are wanted.
        let decision = compare(&comparison, &mut |turn| ring.time(turn))?;
        let pairs: Vec<Pair> = decision.pairs;
        floor::add(self.context, WORK, noise_floor(&[pairs]))
    }

    /// Asks whether `b` is faster than `a`.
    ///
    /// # Errors
    /// An engine fails.
    pub fn compare(
        &self,
        (a, b): (&Contender, &Contender),
        pairs: usize,
        noise: f64,
        seed: u64,
    ) -> Result<Duelled, ToolError> {
        let mut ring = Ring::new(self, [a, b]);
        let comparison = Comparison { pairs, noise_floor: noise, seed };
        let decision = compare(&comparison, &mut |turn| ring.time(turn))?;
        Ok(Duelled { decision, tokens: ring.tokens, fresh_processes: ring.kept.iter().all(Option::is_none) })
    }

    /// What the machine is known to show between an engine and itself, and from how many sessions.
    pub fn known_noise(&self) -> (f64, usize) {
        floor::known(self.context, WORK)
    }

    fn script(&self, rng: &mut Rng, context_tokens: usize) -> Script {
        let turn = PROMPT_TOKENS + GENERATED as usize;
        let turns = (context_tokens.saturating_sub(8) / turn).clamp(1, TURNS as usize);
        let room = self.text.len().saturating_sub(PROMPT_TOKENS).max(1);
        let prompts = (0..turns)
            .map(|_| {
                let from = rng.below(room);
                self.text[from..self.text.len().min(from + PROMPT_TOKENS)].to_vec()
            })
            .collect();
        Script { prompts }
    }
}

/// The two engines of one duel.
struct Ring<'a> {
    arena: &'a Arena<'a>,
    contenders: [&'a Contender; 2],
    /// Engines that load too long to be started anew each time.
    kept: [Option<Host>; 2],
    tokens: u64,
}

impl<'a> Ring<'a> {
    fn new(arena: &'a Arena<'a>, contenders: [&'a Contender; 2]) -> Self {
        Self { arena, contenders, kept: [None, None], tokens: 0 }
    }

    fn time(&mut self, turn: Turn) -> Result<f64, ToolError> {
        let side = usize::from(turn.side == Side::B);
        let (host, load_s) = match self.kept[side].take() {
            Some(host) => (host, f64::MAX),
            None => {
                let begun = Instant::now();
                (Host::start(&self.contenders[side].command)?, begun.elapsed().as_secs_f64())
            }
        };
        let context_tokens = host.client().info()?.max_context as usize;
        // Pages, caches and clocks settle; what this session takes is not looked at. Its text is another one.
        let mut warm = self.arena.script(&mut Rng::new(!turn.seed), context_tokens);
        warm.prompts.truncate(1);
        session(&host, &warm)?;
        let script = self.arena.script(&mut Rng::new(turn.seed), context_tokens);
        self.tokens = script.tokens();
        let seconds = session(&host, &script)?;
        if load_s > LONG_LOAD_S {
            self.kept[side] = Some(host);
        }
        Ok(seconds)
    }
}

/// The turns of a session.
struct Script {
    prompts: Vec<Vec<u32>>,
}

impl Script {
    fn tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.len() as u64 + u64::from(GENERATED)).sum()
    }
}

/// Runs a session and returns its seconds.
fn session(host: &Host, script: &Script) -> Result<f64, ToolError> {
    let begun = Instant::now();
    let mut history: Vec<u32> = Vec::new();
    for prompt in &script.prompts {
        history.extend_from_slice(prompt);
        let request = Generate { prompt: history.clone(), max_tokens: GENERATED, ..Generate::default() };
        history.extend(host.client().submit(request)?.finish()?.tokens);
    }
    Ok(begun.elapsed().as_secs_f64())
}
