//! The plain reference: runs a program op by op with the ops' own loops, one sequence after the other.
//!
//! Slow on purpose, and written to be believed: every kernel, and the exact reference, is judged against it on small
//! shapes. It keeps keys and values by KV block like any executor, so the runtime's tables are exercised too.

use super::Model;
use super::program::op::{NodeView, PlainCx, PlainKv};
use super::program::{PlainError, Precision};
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
    /// `[block use][state][block * block_tokens + offset]`.
    kv: Vec<Vec<Vec<Position>>>,
}

impl PlainExecutor {
    /// An executor of `model`. Memory grows as blocks fill.
    pub fn new(model: Model, sizes: PlainSizes) -> Self {
        let program = &model.program;
        let positions = sizes.blocks * sizes.block_tokens;
        let kv = program
            .step()
            .uses
            .iter()
            .map(|place| vec![vec![Position::default(); positions]; program.blocks[place.block].states.len()])
            .collect();
        let info = ExecutorInfo {
            name: "plain".into(),
            vocab: program.vocab,
            block_tokens: sizes.block_tokens,
            blocks: sizes.blocks,
            slots: sizes.slots,
            max_context: sizes.max_context,
            max_step_tokens: sizes.max_context,
            max_step_rows: sizes.max_context,
            kv_row_bytes: program.kv_row_bytes(|dim| dim * 4),
            stored_bytes: model.stored_bytes(),
            precision: (Precision::F32, Precision::F32),
            memory: MemoryUse {
                weights_bytes: model.checkpoint.tensors().map(|t| t.bytes().len() as u64).sum(),
                state_bytes: (positions * program.kv_bytes_per_token(|dim| dim * 4)) as u64,
                ..MemoryUse::default()
            },
        };
        Self { model, info, kv }
    }

    fn run_sequence(&mut self, batch: &StepBatch, seq: &SeqStep, logits: &mut Vec<f32>) -> Result<(), PlainError> {
        let program = self.model.program.clone();
        let range = seq.first as usize..(seq.first + seq.tokens) as usize;
        let rows: Vec<u32> =
            batch.rows.iter().filter(|row| range.contains(&(**row as usize))).map(|row| row - seq.first).collect();
        let mut values = vec![Vec::new(); program.values.len()];
        for (use_index, place) in program.step().uses.iter().enumerate() {
            let block = &program.blocks[place.block];
            let mut states: Vec<PlainKv> =
                (0..block.states.len()).map(|state| self.gather(use_index, state, seq)).collect();
            for node in &block.ops {
                let view = NodeView { program: &program, block, place: *place, node };
                let tensor = |weight| self.model.weight(*place, weight);
                let mut cx = PlainCx {
                    view,
                    tokens: &batch.tokens[range.clone()],
                    past: seq.past as usize,
                    rows: &rows,
                    values: &mut values,
                    states: &mut states,
                    tensor: &tensor,
                };
                node.op.plain(&mut cx)?;
            }
            for (state, kv) in states.into_iter().enumerate() {
                self.scatter(use_index, state, seq, kv);
            }
        }
        logits.extend_from_slice(&values[program.logits.at()]);
        Ok(())
    }

    fn slot(&self, seq: &SeqStep, position: usize) -> usize {
        let size = self.info.block_tokens;
        seq.blocks[position / size] as usize * size + position % size
    }

    fn gather(&self, use_index: usize, state: usize, seq: &SeqStep) -> PlainKv {
        let at = |p| &self.kv[use_index][state][self.slot(seq, p)];
        let past = seq.past as usize;
        PlainKv {
            keys: (0..past).map(|p| at(p).0.clone()).collect(),
            values: (0..past).map(|p| at(p).1.clone()).collect(),
        }
    }

    fn scatter(&mut self, use_index: usize, state: usize, seq: &SeqStep, kv: PlainKv) {
        for (p, position) in kv.keys.into_iter().zip(kv.values).enumerate().skip(seq.past as usize) {
            let slot = self.slot(seq, p);
            self.kv[use_index][state][slot] = position;
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
        }
        Ok(())
    }
}

impl Executor for PlainExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        logits.clear();
        for seq in &batch.seqs {
            self.run_sequence(batch, seq, logits).map_err(|error| match error {
                PlainError::Token { token, vocab } => EngineError::Token { token, vocab },
                PlainError::Tensor { .. } => EngineError::Kernel { op: "plain".into(), message: error.to_string() },
            })?;
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
        for states in self.kv.iter_mut().flatten() {
            for offset in 0..size {
                states[to as usize * size + offset] = states[from as usize * size + offset].clone();
            }
        }
        Ok(())
    }
}
