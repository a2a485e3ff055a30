//! The plain reference: runs a program op by op with the ops' own loops, one sequence after the other.
//!
//! Slow on purpose, and written to be believed: every kernel, and the exact reference, is judged against it on small
//! shapes. It keeps keys and values by KV block like any executor, so the runtime's tables are exercised too.

use super::Model;
use super::program::op::{NodeView, PlainCx, PlainKv, PlainState};
use super::program::{Entry, PlainError, Precision, StateKind};
use crate::runtime::{EngineError, Executor, ExecutorInfo, MemoryUse, SeqStep, StepBatch};

/// Sizes of a plain executor.
#[derive(Clone, Copy, Debug)]
pub struct PlainSizes {
    /// Positions a block holds.
    pub block_tokens: usize,
    /// Blocks there are.
    pub blocks: usize,
    /// Most sequences.
    pub slots: usize,
    /// Longest sequence.
    pub max_context: usize,
}

/// One position in one layer: its keys and its values.
type Position = (Vec<f32>, Vec<f32>);

/// The plain executor.
pub struct PlainExecutor {
    model: Model,
    info: ExecutorInfo,
    /// `[block use][state]`.
    states: Vec<Vec<Memory>>,
    /// What the last pass left for a draft pass, `[T, width]`.
    left: Vec<f32>,
}

/// Where a state of all sequences is kept.
enum Memory {
    /// Keys and values, `[block * block_tokens + offset]`.
    Kv(Vec<Position>),
    /// Recurrent elements by slot, as they are and as they were before the last step's trial tokens.
    Recurrent { now: Vec<Vec<f32>>, saved: Vec<Vec<f32>> },
}

impl PlainExecutor {
    /// An executor of `model`. Memory grows as blocks fill.
    pub fn new(model: Model, sizes: PlainSizes) -> Self {
        let program = &model.program;
        let positions = sizes.blocks * sizes.block_tokens;
        let memory = |kind: &StateKind| match kind {
            StateKind::Kv { .. } => Memory::Kv(vec![Position::default(); positions]),
            StateKind::Recurrent { .. } => {
                let zeros = vec![vec![0.0; kind.recurrent_elements()]; sizes.slots];
                Memory::Recurrent { now: zeros.clone(), saved: zeros }
            }
        };
        let of_block = |block: usize| program.blocks[block].states.iter().map(|s| memory(&s.kind)).collect();
        let states = program.uses().map(|place| of_block(place.block)).collect();
        let info = ExecutorInfo {
            name: "plain".into(),
            vocab: program.vocab,
            block_tokens: sizes.block_tokens,
            blocks: sizes.blocks,
            slots: sizes.slots,
            max_context: sizes.max_context,
            max_step_tokens: sizes.max_context,
            max_step_rows: sizes.max_context,
            slot_bytes: program.slot_bytes(),
            drafts: program.draft().is_some(),
            long_above: program.long_above(),
            kv_row_bytes: program.kv_row_bytes(|dim| dim * 4),
            stored_bytes: model.stored_bytes(),
            precision: (Precision::F32, Precision::F32),
            memory: MemoryUse {
                weights_bytes: model.checkpoint.tensors().map(|t| t.stored_bytes() as u64).sum(),
                state_bytes: (positions * program.kv_bytes_per_token(|dim| dim * 4)) as u64
                    + 2 * sizes.slots as u64 * program.slot_bytes(),
                ..MemoryUse::default()
            },
        };
        Self { model, info, states, left: Vec::new() }
    }

    /// Runs an entry for one sequence; `carried` are the rows of the pass before that go with its tokens. Returns what
    /// it leaves for a draft pass.
    fn run_sequence(
        &mut self,
        entry: &Entry,
        batch: &StepBatch,
        (seq, carried): (&SeqStep, &[f32]),
        logits: &mut Vec<f32>,
    ) -> Result<Vec<f32>, PlainError> {
        let program = self.model.program.clone();
        let first_use = program.nodes(entry).next().map_or(0, |(at, _)| at.use_index);
        let range = seq.first as usize..(seq.first + seq.tokens) as usize;
        let rows: Vec<u32> =
            batch.rows.iter().filter(|row| range.contains(&(**row as usize))).map(|row| row - seq.first).collect();
        let mut values = vec![Vec::new(); program.values.len()];
        for (i, place) in entry.uses.iter().enumerate() {
            let use_index = first_use + i;
            let block = &program.blocks[place.block];
            let mut states: Vec<PlainState> =
                (0..block.states.len()).map(|state| self.gather(use_index, state, seq)).collect();
            for node in &block.ops {
                let view = NodeView { program: &program, block, place: *place, node };
                let tensor = |weight| self.model.weight(*place, weight);
                let mut cx = PlainCx {
                    view,
                    tokens: &batch.tokens[range.clone()],
                    carried,
                    past: seq.past as usize,
                    length: seq.length as usize,
                    rows: &rows,
                    values: &mut values,
                    states: &mut states,
                    tensor: &tensor,
                };
                node.op.plain(&mut cx)?;
            }
            for (state, after) in states.into_iter().enumerate() {
                self.scatter(use_index, state, seq, after);
            }
        }
        logits.extend_from_slice(&values[program.logits.at()]);
        Ok(program.carried().map_or_else(Vec::new, |id| std::mem::take(&mut values[id.at()])))
    }

    fn slot(&self, seq: &SeqStep, position: usize) -> usize {
        let size = self.info.block_tokens;
        seq.blocks[position / size] as usize * size + position % size
    }

    fn gather(&self, use_index: usize, state: usize, seq: &SeqStep) -> PlainState {
        let (home, of) = self.model.program.state_home(use_index, state);
        // What another layer owns holds this step's positions already.
        let past = seq.past as usize + if home == use_index { 0 } else { seq.tokens as usize };
        match &self.states[home][of] {
            Memory::Kv(positions) => {
                let at = |p| &positions[self.slot(seq, p)];
                let keys = (0..past).map(|p| at(p).0.clone()).collect();
                let values = (0..past).map(|p| at(p).1.clone()).collect();
                PlainState { kv: PlainKv { keys, values }, ..PlainState::default() }
            }
            Memory::Recurrent { now, .. } => {
                let mut elements = now[seq.slot as usize].clone();
                if past == 0 {
                    elements.fill(0.0);
                }
                PlainState { elements, ..PlainState::default() }
            }
        }
    }

    fn scatter(&mut self, use_index: usize, state: usize, seq: &SeqStep, after: PlainState) {
        if self.model.program.state_home(use_index, state) != (use_index, state) {
            return;
        }
        let rows = after.kv.keys.into_iter().zip(after.kv.values).enumerate().skip(seq.past as usize);
        let placed: Vec<(usize, Position)> = rows.map(|(p, position)| (self.slot(seq, p), position)).collect();
        match &mut self.states[use_index][state] {
            Memory::Kv(positions) => placed.into_iter().for_each(|(slot, position)| positions[slot] = position),
            Memory::Recurrent { now, .. } => now[seq.slot as usize] = after.elements,
        }
    }

    /// A sequence's tokens that are not on trial, and then those that are.
    fn parts(seq: &SeqStep) -> [SeqStep; 2] {
        let sure = seq.tokens - seq.trial;
        let first = SeqStep { tokens: sure, trial: 0, ..seq.clone() };
        let trial =
            SeqStep { first: seq.first + sure, tokens: seq.trial, past: seq.past + sure, trial: 0, ..seq.clone() };
        [first, trial]
    }

    fn save(&mut self, slot: usize) {
        for memory in self.states.iter_mut().flatten() {
            if let Memory::Recurrent { now, saved } = memory {
                saved[slot].clone_from(&now[slot]);
            }
        }
    }

    fn check(&self, batch: &StepBatch) -> Result<(), EngineError> {
        let over = |what, given, limit| Err(EngineError::Capacity { what, given, limit });
        for seq in &batch.seqs {
            let end = (seq.past + seq.tokens) as usize;
            if end > seq.blocks.len() * self.info.block_tokens {
                return over("sequence length", end, seq.blocks.len() * self.info.block_tokens);
            }
            if let Some(block) = seq.blocks.iter().find(|block| **block as usize >= self.info.blocks) {
                return over("block", *block as usize, self.info.blocks - 1);
            }
            if seq.slot as usize >= self.info.slots {
                return over("slot", seq.slot as usize, self.info.slots.saturating_sub(1));
            }
        }
        Ok(())
    }
}

fn engine_error(error: PlainError) -> EngineError {
    match error {
        PlainError::Token { token, vocab } => EngineError::Token { token, vocab },
        PlainError::Tensor { .. } => EngineError::Kernel { op: "plain".into(), message: error.to_string() },
    }
}

impl Executor for PlainExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        logits.clear();
        self.left.clear();
        let program = self.model.program.clone();
        for seq in &batch.seqs {
            let [sure, trial] = Self::parts(seq);
            for (part, on_trial) in [(sure, false), (trial, true)].iter().filter(|(part, _)| part.tokens > 0) {
                if *on_trial {
                    self.save(seq.slot as usize);
                }
                let left = self.run_sequence(program.step(), batch, (part, &[]), logits).map_err(engine_error)?;
                self.left.extend(left);
            }
        }
        Ok(())
    }

    fn draft(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        let program = self.model.program.clone();
        let (Some(entry), Some(carried)) = (program.draft(), program.carried()) else {
            return Err(EngineError::Unsupported { message: "the model has no drafting head".into() });
        };
        self.check(batch)?;
        let width = program.values[carried.at()].width;
        let rows = self.left.len() / width;
        if let Some(row) = batch.carry.iter().find(|row| **row as usize >= rows) {
            return Err(EngineError::Capacity { what: "carried row", given: *row as usize, limit: rows });
        }
        logits.clear();
        let before = std::mem::take(&mut self.left);
        for seq in &batch.seqs {
            let rows = &batch.carry[seq.first as usize..(seq.first + seq.tokens) as usize];
            let carried: Vec<f32> =
                rows.iter().flat_map(|row| &before[*row as usize * width..][..width]).copied().collect();
            let left = self.run_sequence(entry, batch, (seq, &carried), logits).map_err(engine_error)?;
            self.left.extend(left);
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        let size = self.info.block_tokens;
        for block in [from, to] {
            if block as usize >= self.info.blocks {
                return Err(EngineError::Capacity {
                    what: "block",
                    given: block as usize,
                    limit: self.info.blocks - 1,
                });
            }
        }
        for memory in self.states.iter_mut().flatten() {
            let Memory::Kv(positions) = memory else { continue };
            for offset in 0..size {
                positions[to as usize * size + offset] = positions[from as usize * size + offset].clone();
            }
        }
        Ok(())
    }

    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        if slot as usize >= self.info.slots {
            let limit = self.info.slots.saturating_sub(1);
            return Err(EngineError::Capacity { what: "slot", given: slot as usize, limit });
        }
        for memory in self.states.iter_mut().flatten() {
            if let Memory::Recurrent { now, saved } = memory {
                now[slot as usize].clone_from(&saved[slot as usize]);
            }
        }
        Ok(())
    }
}
