//! A toy executor for tests of everything above an executor: its logits are a hash of all tokens of the sequence as
//! they lie in its KV blocks.
//!
//! A wrong block table, a wrong position, a lost copy, a stale or shared block, or a slot used twice changes every later
//! logit or is refused. The rows of a sequence are the same bits whatever else is in the step.

use super::{EngineError, Executor, ExecutorInfo, MemoryUse, SeqStep, StepBatch};
use crate::model::program::Precision;
use std::collections::HashSet;
use std::time::Duration;

/// A position of the toy KV cache: the token that was written and the position it was written for.
type Cell = Option<(u32, u32)>;

/// A toy recurrent state: the hash of the tokens absorbed, and their number; `None` after a step that failed.
type Recurrence = Option<(u64, u32)>;

/// The toy.
#[derive(Debug)]
pub struct ToyExecutor {
    info: ExecutorInfo,
    cells: Vec<Cell>,
    /// Recurrent state by slot, as it is and as it was before the last step's trial tokens; none for a toy without.
    recurrent: Vec<[Recurrence; 2]>,
    /// The drafting head's cells, as the trunk's: the token after each position; none for a toy without a head.
    head: Vec<Cell>,
    /// The hash after each token of the last pass.
    left: Vec<u64>,
    /// One in so many rows of the head is wrong; 0: none.
    pub head_wrong_every: u64,
    /// How long a step takes, for tests that act in the middle of a generation.
    pub step_time: Duration,
    /// Steps fail while a sequence contains this token, as a kernel would that cannot digest it.
    pub poison_token: Option<u32>,
    /// Rows are NaN for a sequence that ends with this token.
    pub nan_token: Option<u32>,
    /// Steps run.
    pub steps: u64,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

fn absorb(hash: u64, token: u32) -> u64 {
    mix(hash ^ (u64::from(token) + 1))
}

fn row(hash: u64, vocab: usize) -> impl Iterator<Item = f32> {
    // 24 random bits to [-4, 4): ties are rare, and exact in f32.
    (0..vocab as u64).map(move |v| (mix(hash ^ (v << 32)) >> 40) as f32 / (1 << 21) as f32 - 4.0)
}

/// The logits the toy gives after `history`.
pub fn toy_logits(history: &[u32], vocab: usize) -> Vec<f32> {
    row(history.iter().fold(0, |hash, &token| absorb(hash, token)), vocab).collect()
}

impl ToyExecutor {
    /// A toy with `blocks` blocks of `block_tokens` positions, `slots` sequences and steps of `max_step_tokens`.
    pub fn new(vocab: usize, block_tokens: usize, blocks: usize, slots: usize, max_step_tokens: usize) -> Self {
        let info = ExecutorInfo {
            name: "toy".into(),
            vocab,
            block_tokens,
            blocks,
            slots,
            max_context: block_tokens * blocks,
            max_step_tokens,
            max_step_rows: max_step_tokens,
            slot_bytes: 0,
            drafts: false,
            long_above: None,
            kv_row_bytes: Vec::new(),
            stored_bytes: Vec::new(),
            precision: (Precision::F32, Precision::F32),
            memory: MemoryUse { state_bytes: (block_tokens * blocks * 8) as u64, ..Default::default() },
        };
        Self {
            info,
            cells: vec![None; block_tokens * blocks],
            recurrent: Vec::new(),
            head: Vec::new(),
            left: Vec::new(),
            head_wrong_every: 0,
            step_time: Duration::ZERO,
            poison_token: None,
            nan_token: None,
            steps: 0,
        }
    }

    /// The same with another longest context.
    pub fn with_max_context(mut self, max_context: usize) -> Self {
        self.info.max_context = max_context;
        self
    }

    /// The same with a recurrent state from which the logits come, as of a model that keeps its past in a state of fixed
    /// size: it cannot be cut, shared or read twice.
    pub fn with_recurrence(mut self) -> Self {
        self.recurrent = vec![[None; 2]; self.info.slots];
        self.info.slot_bytes = 12;
        self
    }

    /// The same with a drafting head that says what the toy would say.
    pub fn with_head(mut self) -> Self {
        self.head = vec![None; self.cells.len()];
        self.info.drafts = true;
        self
    }

    /// The same with fewer rows a step.
    pub fn with_max_step_rows(mut self, max_step_rows: usize) -> Self {
        self.info.max_step_rows = max_step_rows;
        self
    }

    fn refuse(message: impl Into<String>) -> EngineError {
        EngineError::Kernel { op: "toy".into(), message: message.into() }
    }

    fn limit(what: &'static str, given: usize, limit: usize) -> Result<(), EngineError> {
        if given > limit { Err(EngineError::Capacity { what, given, limit }) } else { Ok(()) }
    }

    fn check(&self, batch: &StepBatch) -> Result<(), EngineError> {
        Self::limit("tokens", batch.tokens.len(), self.info.max_step_tokens)?;
        Self::limit("rows", batch.rows.len(), self.info.max_step_rows)?;
        Self::limit("sequences", batch.seqs.len(), self.info.slots)?;
        if batch.tokens.is_empty() || batch.positions.len() != batch.tokens.len() {
            return Err(Self::refuse("a step without tokens or with positions for other tokens"));
        }
        if !batch.rows.is_sorted_by(|a, b| a < b) || batch.rows.iter().any(|&r| r as usize >= batch.tokens.len()) {
            return Err(Self::refuse("rows are not ascending tokens of the step"));
        }
        if let Some(&token) = batch.tokens.iter().find(|t| **t as usize >= self.info.vocab) {
            return Err(EngineError::Token { token, vocab: self.info.vocab });
        }
        let (mut slots, mut written, mut next) = (HashSet::new(), HashSet::new(), 0);
        for seq in &batch.seqs {
            let end = (seq.past + seq.tokens) as usize;
            Self::limit("positions", end, self.info.max_context)?;
            let capacity = seq.blocks.len() * self.info.block_tokens;
            if seq.tokens == 0 || seq.first != next || end > capacity {
                return Err(Self::refuse(format!("a sequence of {end} positions with room for {capacity}")));
            }
            if seq.slot as usize >= self.info.slots || !slots.insert(seq.slot) {
                return Err(Self::refuse(format!("slot {} is used twice or does not exist", seq.slot)));
            }
            for index in seq.past as usize / self.info.block_tokens..end.div_ceil(self.info.block_tokens) {
                let block = seq.blocks[index];
                if block as usize >= self.info.blocks || !written.insert(block) {
                    return Err(Self::refuse(format!("block {block} is written twice or does not exist")));
                }
            }
            next += seq.tokens;
        }
        Ok(())
    }

    /// Absorbs a step's tokens into the slot's state: the hash after each.
    fn recur(&mut self, batch: &StepBatch, seq: &SeqStep) -> Result<Vec<u64>, EngineError> {
        let state = &mut self.recurrent[seq.slot as usize];
        if seq.past == 0 {
            *state = [Some((0, 0)); 2];
        }
        let now = state[0].take();
        let Some((mut hash, _)) = now.filter(|(_, absorbed)| *absorbed == seq.past) else {
            return Err(Self::refuse(format!("slot {} holds {now:?} at position {}", seq.slot, seq.past)));
        };
        let mut hashes = Vec::new();
        for i in 0..seq.tokens {
            if seq.trial > 0 && i == seq.tokens - seq.trial {
                state[1] = Some((hash, seq.past + i));
            }
            let token = batch.tokens[(seq.first + i) as usize];
            if self.poison_token == Some(token) {
                return Err(Self::refuse(format!("token {token} is poison")));
            }
            hash = absorb(hash, token);
            hashes.push(hash);
        }
        state[0] = Some((hash, seq.past + seq.tokens));
        Ok(hashes)
    }

    fn cell(&self, blocks: &[u32], position: u32) -> usize {
        let position = position as usize;
        blocks[position / self.info.block_tokens] as usize * self.info.block_tokens + position % self.info.block_tokens
    }
}

impl Executor for ToyExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        self.steps += 1;
        std::thread::sleep(self.step_time);
        logits.clear();
        self.left.clear();
        for seq in &batch.seqs {
            for i in 0..seq.tokens {
                let at = self.cell(&seq.blocks, seq.past + i);
                let token = batch.tokens[(seq.first + i) as usize];
                self.cells[at] = Some((token, batch.positions[(seq.first + i) as usize]));
            }
            let recurred = if self.recurrent.is_empty() { None } else { Some(self.recur(batch, seq)?) };
            let mut hash = 0;
            for position in 0..seq.past + seq.tokens {
                let token = match self.cells[self.cell(&seq.blocks, position)] {
                    Some((token, written_for)) if written_for == position => token,
                    other => return Err(Self::refuse(format!("position {position} holds {other:?}"))),
                };
                if self.poison_token == Some(token) {
                    return Err(Self::refuse(format!("token {token} is poison")));
                }
                hash = absorb(hash, token);
                let hash = match &recurred {
                    Some(hashes) if position >= seq.past => hashes[(position - seq.past) as usize],
                    _ => hash,
                };
                if position >= seq.past {
                    self.left.push(hash);
                }
                if position >= seq.past && batch.rows.binary_search(&(seq.first + position - seq.past)).is_ok() {
                    match self.nan_token == Some(token) {
                        true => logits.extend(std::iter::repeat_n(f32::NAN, self.info.vocab)),
                        false => logits.extend(row(hash, self.info.vocab)),
                    }
                }
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        Self::limit("block", from.max(to) as usize, self.info.blocks.saturating_sub(1))?;
        let size = self.info.block_tokens;
        if !self.head.is_empty() {
            self.head.copy_within(from as usize * size..(from as usize + 1) * size, to as usize * size);
        }
        self.cells.copy_within(from as usize * size..(from as usize + 1) * size, to as usize * size);
        Ok(())
    }

    fn draft(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        if self.head.is_empty() || batch.carry.len() != batch.tokens.len() {
            return Err(Self::refuse("no head, or not a carried row for every token"));
        }
        let before = std::mem::take(&mut self.left);
        logits.clear();
        for seq in &batch.seqs {
            for i in 0..seq.tokens {
                let (position, token) = (seq.past + i, batch.tokens[(seq.first + i) as usize]);
                let at = self.cell(&seq.blocks, position);
                self.head[at] = Some((token, position));
                let hole = (0..position).find(|p| self.head[self.cell(&seq.blocks, *p)].is_none_or(|c| c.1 != *p));
                if let Some(hole) = hole {
                    return Err(Self::refuse(format!("the head has nothing for position {hole} before {position}")));
                }
                let Some(hash) = before.get(batch.carry[(seq.first + i) as usize] as usize) else {
                    return Err(Self::refuse("a carried row that the last pass did not have"));
                };
                let hash = absorb(*hash, token);
                self.left.push(hash);
                if batch.rows.binary_search(&(seq.first + i)).is_ok() {
                    let wrong = self.head_wrong_every > 0 && hash.is_multiple_of(self.head_wrong_every);
                    logits.extend(row(hash ^ u64::from(wrong), self.info.vocab));
                }
            }
        }
        Ok(())
    }

    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        Self::limit("slot", slot as usize + 1, self.recurrent.len())?;
        let state = &mut self.recurrent[slot as usize];
        // What was saved is good once: the next trial saves anew.
        state[0] = state[1].take();
        Ok(())
    }
}
