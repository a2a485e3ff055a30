//! Which tokens of which requests run in the next step.
//!
//! Requests are served in the order they came. A request is admitted when the state of its whole prompt, one token more
//! and one block for every running request are free; the prompt then runs in chunks beside the others' decoding. Each
//! step goes to decoding requests first (those that waited longest first, should not all fit), then to prompts, then
//! to drafts. When decoding runs out of blocks, the youngest request gives up its state, goes back to the head of the
//! queue, and is computed again later from its tokens.
//!
//! Invariants: `running` is ordered by age and every member holds state; `waiting` holds none and everything in it is
//! younger than what was admitted before it, or was preempted.

use super::sequence::Sequence;
use super::state::StateStore;
use crate::plugin::{Draft, Drafter};
use std::collections::VecDeque;
use std::time::Instant;

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) step_tokens: usize,
    pub(super) step_rows: usize,
    pub(super) draft_tokens: usize,
    pub(super) vocab: usize,
}

/// A request's part in the next step.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) key: u64,
    /// Pending tokens to run.
    pub(super) take: usize,
    /// Whether those are all, so that the next token can be chosen.
    pub(super) last: bool,
    /// Tokens to run behind them on trial.
    pub(super) draft: Draft,
    /// KV blocks to copy first, from and to.
    pub(super) copies: Vec<(u32, u32)>,
}

/// The requests, waiting and running.
#[derive(Debug)]
pub(super) struct Scheduler {
    pub(super) waiting: VecDeque<Sequence>,
    pub(super) running: Vec<Sequence>,
    pub(super) preemptions: u64,
    limits: Limits,
    step: u64,
}

/// Who proposes tokens.
pub(super) enum Proposer<'a> {
    /// A policy.
    Drafter(&'a mut (dyn Drafter + 'static)),
    /// The model's own head, which left its proposals with the sequence.
    Head,
}

impl Proposer<'_> {
    fn propose(&mut self, sequence: &mut Sequence, wanted: usize) -> Draft {
        match self {
            Self::Drafter(drafter) => drafter.propose(sequence.key, &sequence.tokens, wanted),
            Self::Head => {
                let (length, tokens) = std::mem::take(&mut sequence.drafted);
                let tokens = if length == sequence.tokens.len() { tokens } else { Vec::new() };
                Draft { tokens, probs: None }
            }
        }
    }
}

/// What is left of a step while it is planned.
struct Budget {
    tokens: usize,
    rows: usize,
}

impl Budget {
    /// How many of `pending` tokens fit, counting the row of the last one.
    fn fit(&self, pending: usize) -> usize {
        let take = pending.min(self.tokens);
        if take == pending && self.rows == 0 { take.saturating_sub(1) } else { take }
    }

    fn spend(&mut self, key: u64, take: usize, pending: usize) -> Planned {
        let last = take == pending;
        self.tokens -= take;
        self.rows -= usize::from(last);
        Planned { key, take, last, ..Planned::default() }
    }
}

impl Scheduler {
    pub(super) fn new(limits: Limits) -> Self {
        Self { waiting: VecDeque::new(), running: Vec::new(), preemptions: 0, limits, step: 0 }
    }

    pub(super) fn running(&mut self, key: u64) -> Option<&mut Sequence> {
        self.running.iter_mut().find(|sequence| sequence.key == key)
    }

    /// Takes a request out, wherever it is.
    pub(super) fn remove(&mut self, key: u64) -> Option<Sequence> {
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.key == key) {
            return self.waiting.remove(at);
        }
        let at = self.running.iter().position(|sequence| sequence.key == key)?;
        Some(self.running.remove(at))
    }

    /// Plans the next step, oldest request first; empty if nothing can run.
    pub(super) fn plan(
        &mut self,
        state: &mut StateStore,
        proposer: Option<Proposer<'_>>,
        now: Instant,
    ) -> Vec<Planned> {
        self.step += 1;
        self.restart_outgrown(state);
        let mut budget = Budget { tokens: self.limits.step_tokens, rows: self.limits.step_rows };
        let mut plan = self.plan_decodes(&mut budget);
        self.plan_prompts(&mut budget, &mut plan);
        plan.sort_by_key(|planned| planned.key);
        let preempted = self.reserve(&mut plan, state);
        if !preempted {
            self.admit(&mut budget, &mut plan, state, now);
        }
        if let Some(proposer) = proposer {
            self.plan_drafts(&mut budget, &mut plan, state, proposer);
        }
        for planned in &plan {
            let step = self.step;
            if let Some(sequence) = self.running(planned.key) {
                sequence.last_step = step;
            }
        }
        plan
    }

    /// A sequence that became long is computed anew from its tokens, like a prompt.
    fn restart_outgrown(&mut self, state: &mut StateStore) {
        for sequence in &mut self.running {
            let length = sequence.tokens.len();
            if let Some(held) = sequence.held.as_mut().filter(|held| state.outgrown(held, length)) {
                state.restart(held);
            }
        }
    }

    fn plan_decodes(&self, budget: &mut Budget) -> Vec<Planned> {
        let mut decoding: Vec<&Sequence> = self.running.iter().filter(|sequence| sequence.pending() == 1).collect();
        decoding.sort_by_key(|sequence| (sequence.last_step, sequence.key));
        // However many decode, a prompt gets on.
        let prompts = decoding.len() < self.running.len();
        let kept = usize::from(prompts && budget.tokens > 1);
        let fit = (budget.tokens - kept).min(budget.rows);
        decoding.into_iter().take(fit).map(|sequence| budget.spend(sequence.key, 1, 1)).collect()
    }

    fn plan_prompts(&self, budget: &mut Budget, plan: &mut Vec<Planned>) {
        for sequence in self.running.iter().filter(|sequence| sequence.pending() > 1) {
            let take = budget.fit(sequence.pending());
            if take > 0 {
                plan.push(budget.spend(sequence.key, take, sequence.pending()));
            }
        }
    }

    /// Reserves the state of everything planned; takes the youngest requests' state if there is too little. Returns
    /// whether any was taken.
    fn reserve(&mut self, plan: &mut Vec<Planned>, state: &mut StateStore) -> bool {
        let before = self.preemptions;
        for planned in plan.iter_mut() {
            while let Some(held) = self.running(planned.key).and_then(|sequence| sequence.held.as_mut()) {
                let positions = held.computed + planned.take;
                match state.extend(held, positions) {
                    Ok(copies) => {
                        planned.copies = copies;
                        break;
                    }
                    // The plan goes from old to young, so whoever loses its state has nothing reserved in this step.
                    Err(_) => self.preempt_youngest(state),
                }
            }
        }
        plan.retain(|planned| self.running(planned.key).is_some());
        self.preemptions > before
    }

    /// Takes the state of the youngest running request and puts it back to the head of the queue.
    pub(super) fn preempt_youngest(&mut self, state: &mut StateStore) {
        if let Some(mut sequence) = self.running.pop() {
            if let Some(held) = sequence.held.take() {
                state.close(held);
            }
            self.preemptions += 1;
            self.waiting.push_front(sequence);
        }
    }

    fn admit(&mut self, budget: &mut Budget, plan: &mut Vec<Planned>, state: &mut StateStore, now: Instant) {
        while budget.tokens > 0 {
            let Some(sequence) = self.waiting.front_mut() else { return };
            let (length, spare) = (sequence.tokens.len(), self.running.len());
            let Some(held) = state.open(&sequence.tokens, length, length + 1, spare) else { return };
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            if sequence.generated() == 0 {
                sequence.usage.cached_tokens = held.computed as u32;
            }
            sequence.held = Some(held);
            sequence.admitted(now);
            let take = budget.fit(sequence.pending());
            if take > 0 {
                plan.push(budget.spend(sequence.key, take, sequence.pending()));
            }
            let at = self.running.partition_point(|other| other.key < sequence.key);
            self.running.insert(at, sequence);
        }
    }

    /// Lets the drafter propose for decoding requests, as far as the step and free blocks go.
    fn plan_drafts(
        &mut self,
        budget: &mut Budget,
        plan: &mut [Planned],
        state: &mut StateStore,
        mut proposer: Proposer<'_>,
    ) {
        let limit = self.limits.draft_tokens;
        // More than one token is pending after a rejected draft, where state went back to before it.
        let decoding: Vec<u64> = self.running.iter().filter(|s| s.generated() > 0).map(|s| s.key).collect();
        let drafts = |planned: &Planned| planned.last && (planned.take == 1 || decoding.contains(&planned.key));
        let mut left = plan.iter().filter(|planned| drafts(planned)).count();
        for planned in plan.iter_mut().filter(|planned| drafts(planned)) {
            let share = budget.tokens.min(budget.rows) / left.max(1);
            left -= 1;
            let Some(sequence) = self.running.iter_mut().find(|sequence| sequence.key == planned.key) else { continue };
            let Some(held) = sequence.held.as_ref() else { continue };
            // The token after the drafted ones counts too.
            let room = sequence.longest.saturating_sub(sequence.tokens.len() + 1);
            let capacity = (held.table.blocks().len() + state.pool.free()) * state.pool.block_tokens();
            let blocks = capacity.saturating_sub(held.computed + planned.take);
            let short = state.short_room(held, sequence.tokens.len());
            let wanted = limit.min(share).min(room).min(blocks).min(short);
            if wanted == 0 {
                continue;
            }
            let mut draft = proposer.propose(sequence, wanted);
            let valid = draft.tokens.iter().take_while(|token| (**token as usize) < self.limits.vocab).count();
            draft.tokens.truncate(wanted.min(valid));
            if draft.tokens.is_empty() {
                continue;
            }
            let Some(held) = sequence.held.as_mut() else { continue };
            if let Ok(copies) = state.extend(held, held.computed + planned.take + draft.tokens.len()) {
                planned.copies.extend(copies);
                budget.tokens -= draft.tokens.len();
                budget.rows -= draft.tokens.len();
                planned.draft = draft;
            }
        }
    }
}
