//! Drafting with the model's own head.
//!
//! Behind every step the head runs once over the positions that step computed and kept, each with the token that came
//! after it: that fills the head's own keys and values, and its last row proposes the token after the next. Further
//! tokens are proposed by running the head on its own proposals, one token a sequence and pass.
//!
//! The head's keys and values lie in the blocks of the trunk's, at the position of the outcome they go with. What a
//! proposal left there is overwritten by the next run over kept positions. A head that fails or has no room proposes
//! nothing: only speed depends on it.

use super::{Engine, Executor, StepBatch};

/// A request's part in the step that just ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) key: u64,
    /// Its first row among the step's tokens.
    pub(super) first: usize,
    /// Positions there were before.
    pub(super) past: usize,
    /// Positions computed from tokens that stayed.
    pub(super) kept: usize,
}

/// A sequence that the head is asked to go on with.
struct Ask {
    key: u64,
    /// Position of the proposal the next pass takes up.
    position: usize,
    /// Row of its outcome in the last pass.
    row: usize,
    tokens: Vec<u32>,
    limit: usize,
}

impl<E: Executor> Engine<E> {
    /// Lets the head follow a step and propose for the next one.
    pub(super) fn follow(&mut self, ran: &[Ran]) {
        let Some(limit) = self.draft_head else { return };
        let mut batch = StepBatch::default();
        let mut asks = Vec::new();
        for ran in ran {
            if let Some(ask) = self.place_kept(*ran, limit, &mut batch) {
                asks.push(ask);
            }
        }
        if batch.tokens.is_empty() || self.draft_pass(&batch).is_none() {
            return;
        }
        let mut open: Vec<usize> = (0..asks.len()).filter(|i| asks[*i].limit > 0).collect();
        self.take_proposals(&open, &mut asks);
        open.retain(|i| asks[*i].tokens.len() < asks[*i].limit);
        while !open.is_empty() {
            let mut batch = StepBatch::default();
            open.retain(|i| self.place_proposal(&mut asks[*i], &mut batch));
            if open.is_empty() || self.draft_pass(&batch).is_none() {
                break;
            }
            self.take_proposals(&open, &mut asks);
            open.retain(|i| asks[*i].tokens.len() < asks[*i].limit);
        }
        for ask in asks {
            if let Some(sequence) = self.scheduler.running(ask.key) {
                sequence.drafted = (sequence.tokens.len(), ask.tokens);
            }
        }
    }

    /// Puts a sequence's kept positions into the batch; says how to go on.
    fn place_kept(&mut self, ran: Ran, limit: usize, batch: &mut StepBatch) -> Option<Ask> {
        let sequence = self.scheduler.running.iter().find(|sequence| sequence.key == ran.key)?;
        let held = sequence.held.as_ref()?;
        let Ran { first, past, kept, .. } = ran;
        let tokens = sequence.tokens.get(past + 1..past + kept + 1)?;
        // Nothing is proposed inside a prompt, nor where the request ends with the next token.
        let last = past + kept + 1 == sequence.tokens.len();
        let room = sequence.longest.saturating_sub(sequence.tokens.len() + 1);
        let limit = if last { limit.min(room) } else { 0 };
        let wanted = kept as u32 - u32::from(limit > 0)..kept as u32;
        batch.push(tokens, past as u32, held.table.blocks().to_vec(), held.slot, wanted);
        batch.known(sequence.tokens.len());
        batch.carry.extend((first..first + kept).map(|row| row as u32));
        Some(Ask { key: ran.key, position: past + kept, row: batch.tokens.len() - 1, tokens: Vec::new(), limit })
    }

    /// Puts a sequence's last proposal into the batch, if there is room for it.
    fn place_proposal(&mut self, ask: &mut Ask, batch: &mut StepBatch) -> bool {
        let Some(sequence) = self.scheduler.running.iter_mut().find(|sequence| sequence.key == ask.key) else {
            return false;
        };
        let (Some(held), Some(token)) = (sequence.held.as_mut(), ask.tokens.last()) else { return false };
        // Proposals never take memory from anybody: not from the prefix cache either.
        if held.table.grow(&mut self.state.pool, ask.position + 1).is_err() {
            return false;
        }
        batch.push(&[*token], ask.position as u32, held.table.blocks().to_vec(), held.slot, 0..1);
        batch.known(sequence.tokens.len());
        batch.carry.push(ask.row as u32);
        ask.row = batch.tokens.len() - 1;
        ask.position += 1;
        true
    }

    fn draft_pass(&mut self, batch: &StepBatch) -> Option<()> {
        self.executor.draft(batch, &mut self.logits).ok()?;
        (self.logits.len() == batch.rows.len() * self.vocab).then_some(())
    }

    /// The likeliest token of each row, the lowest of equals.
    fn take_proposals(&self, open: &[usize], asks: &mut [Ask]) {
        for (i, row) in open.iter().zip(self.logits.chunks_exact(self.vocab.max(1))) {
            let best = row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (token, value)| {
                if *value > best.1 { (token, *value) } else { best }
            });
            asks[*i].tokens.push(best.0 as u32);
        }
    }
}
