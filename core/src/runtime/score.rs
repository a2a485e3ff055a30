//! Scoring plans: run exactly the steps asked for and give back full-vocabulary log-probs.
//!
//! The plan is checked as a whole before anything runs. A step of a plan is one step of the executor, with nothing else
//! in it; steps of generations may run between. A plan's state comes from the same blocks and slots; generations give
//! theirs up for it when there is too little.
//!
//! In a verify step logits are computed for every drafted token, as in drafting, and those of rejected ones dropped.

use super::sequence::Held;
use super::{Engine, EngineError, Executor, ExecutorInfo, StepBatch};
use crate::error::{Diagnose, ErrorKind};
use crate::protocol::{ScoreItem, ScorePlan, ScoreRow};
use crate::sampling::log_softmax;

/// Why a plan cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// A sequence is wrong.
    #[error("score plan: sequence {seq}: {problem}")]
    Sequence {
        /// Which.
        seq: usize,
        /// What is wrong.
        problem: String,
    },
    /// An item is wrong.
    #[error("score plan: step {step}, item {item} (sequence {seq}): {problem}")]
    Item {
        /// Step.
        step: usize,
        /// Item of the step.
        item: usize,
        /// Its sequence.
        seq: u32,
        /// What is wrong.
        problem: String,
    },
    /// A step is wrong.
    #[error("score plan: step {step}: {problem}")]
    Step {
        /// Which.
        step: usize,
        /// What is wrong.
        problem: String,
    },
    /// The executor failed.
    #[error("score plan: step {step} failed: {source}")]
    Engine {
        /// Which.
        step: usize,
        /// How.
        source: EngineError,
    },
}

impl Diagnose for ScoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Engine { source, .. } => source.kind(),
            _ => ErrorKind::Input,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Engine { source, .. } => source.hint(),
            Self::Step { .. } => Some("split the step; `info` tells what an engine can hold".into()),
            _ => None,
        }
    }
}

/// A sequence of a running plan.
#[derive(Debug, Default)]
struct Track {
    held: Option<Held>,
    /// Ids behind it, by the plan's items.
    cursor: usize,
    /// Its last step in the plan.
    last_step: usize,
    hit: u32,
}

/// A plan on its way. It must be given back by [`Engine::score_end`].
#[derive(Debug)]
pub struct ScoreRun {
    plan: ScorePlan,
    tracks: Vec<Track>,
    step: usize,
    rows: Vec<ScoreRow>,
    log_probs: Vec<f32>,
}

impl ScoreRun {
    /// What the rows of the last step are.
    pub fn rows(&self) -> &[ScoreRow] {
        &self.rows
    }

    /// Log-probs of the last step, `[rows, vocab]`.
    pub fn log_probs(&self) -> &[f32] {
        &self.log_probs
    }
}

/// An item's part in a step: what runs and what is reported.
struct Part {
    seq: usize,
    /// Positions there before.
    past: usize,
    /// Ids run first whose rows were given before: accepted ones that recurrent state went back behind.
    again: usize,
    /// Ids run after those (without drafts).
    ids: usize,
    draft: usize,
    accept: usize,
    rows: bool,
}

impl<E: Executor> Engine<E> {
    /// Checks a plan and prepares to run it.
    ///
    /// # Errors
    /// What is wrong with the plan, by step and item.
    pub fn score_start(&self, plan: ScorePlan) -> Result<ScoreRun, ScoreError> {
        let last_steps = check(&plan, self.executor.info())?;
        let tracks = last_steps.into_iter().map(|last_step| Track { last_step, ..Track::default() }).collect();
        Ok(ScoreRun { plan, tracks, step: 0, rows: Vec::new(), log_probs: Vec::new() })
    }

    /// Runs the next step of a plan; its rows are then in `run`. False if there is none left.
    ///
    /// # Errors
    /// The executor failed; the plan must then be ended.
    pub fn score_step(&mut self, run: &mut ScoreRun) -> Result<bool, ScoreError> {
        run.rows.clear();
        let step = run.step;
        let Some(items) = run.plan.steps.get(step) else { return Ok(false) };
        let mut batch = StepBatch::default();
        let mut parts = Vec::new();
        let engine = |source| ScoreError::Engine { step, source };
        for item in items {
            if let Some(part) = self.place(item, &run.plan, &mut run.tracks, &mut batch).map_err(engine)? {
                parts.push(part);
            }
        }
        if !batch.tokens.is_empty() {
            self.pass(&batch).map_err(engine)?;
            self.collect(&parts, run).map_err(engine)?;
        }
        self.retire(run);
        run.step += 1;
        Ok(true)
    }

    /// Frees what a plan holds. Returns the positions each sequence took from the prefix cache.
    pub fn score_end(&mut self, run: ScoreRun) -> Vec<u32> {
        run.tracks
            .into_iter()
            .map(|track| {
                if let Some(held) = track.held {
                    self.state.close(held);
                }
                track.hit
            })
            .collect()
    }

    /// Reserves an item's state and puts its tokens into the batch; `None` if the prefix cache covers it.
    fn place(
        &mut self,
        item: &ScoreItem,
        plan: &ScorePlan,
        tracks: &mut [Track],
        batch: &mut StepBatch,
    ) -> Result<Option<Part>, EngineError> {
        let (seq, take) = (item.seq as usize, item.take as usize);
        let (sequence, track) = (&plan.sequences[seq], &mut tracks[seq]);
        let (begin, end) = (track.cursor, track.cursor + take);
        track.cursor = end + item.accept as usize;
        let positions = end + item.draft.len();
        loop {
            let copies = match &mut track.held {
                Some(held) if held.computed >= end => return Ok(None),
                Some(held) => self.state.extend(held, positions).ok(),
                None => {
                    track.held = self.state.open(&sequence.ids, sequence.prefix as usize, positions, 0);
                    track.hit = track.held.as_ref().map_or(0, |held| held.computed as u32);
                    track.held.is_some().then(Vec::new)
                }
            };
            match copies {
                Some(copies) => {
                    copies.into_iter().try_for_each(|(from, to)| self.executor.copy_block(from, to))?;
                    break;
                }
                None if self.scheduler.running.is_empty() => {
                    return Err(EngineError::Capacity {
                        what: "positions",
                        given: positions,
                        limit: self.state.pool.free() * self.state.pool.block_tokens(),
                    });
                }
                None => self.scheduler.preempt_youngest(&mut self.state),
            }
        }
        let Some(held) = &track.held else { return Ok(None) };
        let past = held.computed;
        if past >= end {
            return Ok(None);
        }
        let again = if self.recurrent { begin.saturating_sub(past) } else { 0 };
        let tokens = [&sequence.ids[past..end], &item.draft].concat();
        let wanted = again as u32..if item.rows { tokens.len() as u32 } else { again as u32 };
        batch.push(&tokens, past as u32, held.table.blocks().to_vec(), held.slot, wanted);
        batch.on_trial(item.draft.len() as u32);
        // A plan's sequence is known as a whole, so every path through it computes the same positions.
        batch.known(sequence.ids.len().max(past + tokens.len()));
        let (draft, accept) = (item.draft.len(), item.accept as usize);
        Ok(Some(Part { seq, past, again, ids: end - past - again, draft, accept, rows: item.rows }))
    }

    /// Takes the logits of a step as log-probs, without rejected drafts, and rolls those back.
    fn collect(&mut self, parts: &[Part], run: &mut ScoreRun) -> Result<(), EngineError> {
        // The two buffers change places, so none is made a step.
        std::mem::swap(&mut self.logits, &mut run.log_probs);
        let vocab = self.vocab;
        let (mut from, mut to) = (0, 0);
        for part in parts {
            let kept = part.ids + part.accept;
            if part.rows {
                run.log_probs.copy_within(from * vocab..(from + kept) * vocab, to * vocab);
                from += part.ids + part.draft;
                to += kept;
                let row = |i: usize| ScoreRow { seq: part.seq as u32, position: (part.past + part.again + i) as u32 };
                run.rows.extend((0..kept).map(row));
            }
            if let Some(held) = &mut run.tracks[part.seq].held {
                let rejected = part.accept < part.draft && self.recurrent;
                if rejected {
                    self.executor.roll_back(held.slot)?;
                }
                held.computed = part.past + part.again + if rejected { part.ids } else { kept };
                held.table.truncate(&mut self.state.pool, held.computed);
            }
        }
        run.log_probs.truncate(to * vocab);
        run.log_probs.chunks_exact_mut(vocab.max(1)).for_each(log_softmax);
        Ok(())
    }

    /// Frees sequences whose last item has run.
    fn retire(&mut self, run: &mut ScoreRun) {
        for (track, sequence) in run.tracks.iter_mut().zip(&run.plan.sequences) {
            if track.last_step == run.step
                && let Some(held) = track.held.take()
            {
                if sequence.keep {
                    self.state.remember(&held, &sequence.ids[..held.computed.min(sequence.ids.len())]);
                }
                self.state.close(held);
            }
        }
    }
}

/// Checks a plan against what the executor offers. Returns the last step of each sequence.
fn check(plan: &ScorePlan, info: &ExecutorInfo) -> Result<Vec<usize>, ScoreError> {
    for (seq, sequence) in plan.sequences.iter().enumerate() {
        let problem = if sequence.ids.is_empty() {
            "it has no ids".to_string()
        } else if let Some(id) = sequence.ids.iter().find(|id| **id as usize >= info.vocab) {
            format!("id {id} is outside the vocabulary of {}", info.vocab)
        } else {
            continue;
        };
        return Err(ScoreError::Sequence { seq, problem });
    }
    let mut last_steps = vec![usize::MAX; plan.sequences.len()];
    for (step, items) in plan.steps.iter().enumerate() {
        for (item, part) in items.iter().enumerate() {
            let seq = part.seq;
            let wrong = |problem: String| ScoreError::Item { step, item, seq, problem };
            let Some(last) = last_steps.get_mut(seq as usize) else {
                return Err(wrong(format!("the plan has {} sequences", plan.sequences.len())));
            };
            if *last == step {
                return Err(wrong("the sequence is in this step already".into()));
            }
            *last = step;
        }
    }
    check_steps(plan, info, &last_steps)?;
    Ok(last_steps)
}

fn check_steps(plan: &ScorePlan, info: &ExecutorInfo, last_steps: &[usize]) -> Result<(), ScoreError> {
    let block_tokens = info.block_tokens.max(1);
    let mut cursors = vec![0usize; plan.sequences.len()];
    // Blocks held by the sequences that are alive, as if nothing came from the prefix cache.
    let mut blocks = vec![0usize; plan.sequences.len()];
    // Accepted ids that run once more, where rejected ones took recurrent state back.
    let mut again = vec![0usize; plan.sequences.len()];
    for (step, items) in plan.steps.iter().enumerate() {
        let (mut tokens, mut rows) = (0, 0);
        for (item, part) in items.iter().enumerate() {
            let seq = part.seq as usize;
            let positions = check_item(part, &plan.sequences[seq].ids, cursors[seq], info)
                .map_err(|problem| ScoreError::Item { step, item, seq: part.seq, problem })?;
            cursors[seq] += part.take as usize + part.accept as usize;
            blocks[seq] = positions.div_ceil(block_tokens);
            let width = part.take as usize + part.draft.len();
            tokens += width + again[seq];
            let rejected = (part.accept as usize) < part.draft.len() && info.slot_bytes > 0;
            again[seq] = if rejected { part.accept as usize } else { 0 };
            rows += if part.rows { width } else { 0 };
        }
        let limits = [
            ("tokens", tokens, info.max_step_tokens),
            ("rows", rows, info.max_step_rows),
            ("sequences alive", blocks.iter().filter(|count| **count > 0).count(), info.slots),
            ("KV blocks", blocks.iter().sum(), info.blocks),
        ];
        if let Some((what, given, limit)) = limits.into_iter().find(|(_, given, limit)| given > limit) {
            let problem = format!("it needs {given} {what}, the engine holds {limit}");
            return Err(ScoreError::Step { step, problem });
        }
        if items.is_empty() {
            return Err(ScoreError::Step { step, problem: "it has no items".into() });
        }
        for (count, _) in blocks.iter_mut().zip(last_steps).filter(|(_, last)| **last == step) {
            *count = 0;
        }
    }
    Ok(())
}

/// Checks an item that starts behind `cursor` ids. Returns the positions its sequence then has, drafts included.
fn check_item(item: &ScoreItem, ids: &[u32], cursor: usize, info: &ExecutorInfo) -> Result<usize, String> {
    let (take, accept) = (item.take as usize, item.accept as usize);
    let left = ids.len() - cursor;
    if take == 0 {
        return Err("take is 0, a sequence advances by at least one id".into());
    }
    if take > left {
        return Err(format!("take is {take} and {left} ids are left"));
    }
    if let Some(token) = item.draft.iter().find(|token| **token as usize >= info.vocab) {
        return Err(format!("draft token {token} is outside the vocabulary of {}", info.vocab));
    }
    if accept > item.draft.len() {
        return Err(format!("accept is {accept} of a draft of {}", item.draft.len()));
    }
    let next = &ids[cursor + take..];
    if accept > next.len() || item.draft[..accept] != next[..accept] {
        return Err("accepted draft tokens are not the sequence's next ids".into());
    }
    match cursor + take + item.draft.len() {
        positions if positions > info.max_context => {
            Err(format!("it reaches {positions} positions, the context holds {}", info.max_context))
        }
        positions => Ok(positions),
    }
}
