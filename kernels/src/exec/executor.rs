//! Runs steps: checks the tables, walks the kernels, hands out logits.

use super::kv::KvStore;
use super::recurrent::RecurrentStore;
use super::step::{Kernel, StepCx, Values};
use crate::cpu::Pool;
use crit_core::model::program::Program;
use crit_core::runtime::{EngineError, Executor, ExecutorInfo, OpTime, StepBatch};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The CPU executor.
pub struct CpuExecutor {
    pub(super) program: Arc<Program>,
    pub(super) info: ExecutorInfo,
    /// Those of the step, then those of the drafting head.
    pub(super) kernels: Vec<Box<dyn Kernel>>,
    pub(super) step_kernels: usize,
    pub(super) values: Values,
    pub(super) kv: KvStore,
    pub(super) recurrent: RecurrentStore,
    pub(super) pool: Pool,
    /// Nanoseconds of the last step by kernel.
    pub(super) times_ns: Vec<u64>,
    /// Tokens of the last pass: rows a draft pass may take over.
    pub(super) left: usize,
}

impl CpuExecutor {
    /// The program it runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs some of the kernels on a batch.
    fn run(&mut self, batch: &StepBatch, kernels: Range<usize>, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.values.begin(batch.tokens.len(), batch.rows.len());
        self.left = 0;
        let mut last = Instant::now();
        for (kernel, time_ns) in self.kernels[kernels.clone()].iter_mut().zip(&mut self.times_ns[kernels]) {
            let mut cx = StepCx {
                batch,
                values: &mut self.values,
                kv: &mut self.kv,
                recurrent: &mut self.recurrent,
                pool: &self.pool,
            };
            kernel.enqueue(&mut cx)?;
            let now = Instant::now();
            *time_ns = (now - last).as_nanos() as u64;
            last = now;
        }
        self.left = batch.tokens.len();
        logits.clear();
        logits.extend_from_slice(self.values.get(self.program.logits));
        Ok(())
    }

    fn check(&self, batch: &StepBatch) -> Result<(), EngineError> {
        let within = |what, given, limit| {
            if given > limit { Err(EngineError::Capacity { what, given, limit }) } else { Ok(()) }
        };
        within("tokens", batch.tokens.len(), self.info.max_step_tokens)?;
        within("rows", batch.rows.len(), self.info.max_step_rows)?;
        if let Some(row) = batch.rows.iter().find(|row| **row as usize >= batch.tokens.len()) {
            return Err(EngineError::Capacity { what: "row", given: *row as usize, limit: batch.tokens.len() });
        }
        if let Some(token) = batch.tokens.iter().find(|t| **t as usize >= self.program.vocab) {
            return Err(EngineError::Token { token: *token, vocab: self.program.vocab });
        }
        for seq in &batch.seqs {
            let end = seq.past as usize + seq.tokens as usize;
            within("sequence length", end, seq.blocks.len() * self.info.block_tokens)?;
            within("context", end, self.info.max_context)?;
            let largest = seq.blocks.iter().copied().max().unwrap_or(0) as usize;
            within("slot", seq.slot as usize, self.info.slots.saturating_sub(1))?;
            within("block", largest, self.info.blocks.saturating_sub(1))?;
        }
        Ok(())
    }
}

impl Executor for CpuExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(batch)?;
        self.recurrent.begin(batch);
        self.times_ns.fill(0);
        self.run(batch, 0..self.step_kernels, logits)
    }

    fn draft(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        if self.step_kernels == self.kernels.len() {
            return Err(EngineError::Unsupported { message: "the model has no drafting head".into() });
        }
        self.check(batch)?;
        if batch.carry.len() != batch.tokens.len() {
            let (given, limit) = (batch.carry.len(), batch.tokens.len());
            return Err(EngineError::Capacity { what: "carried rows", given, limit });
        }
        if let Some(row) = batch.carry.iter().find(|row| **row as usize >= self.left) {
            return Err(EngineError::Capacity { what: "carried row", given: *row as usize, limit: self.left });
        }
        self.run(batch, self.step_kernels..self.kernels.len(), logits)
    }
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        for block in [from, to] {
            if block as usize >= self.info.blocks {
                return Err(EngineError::Capacity {
                    what: "block",
                    given: block as usize,
                    limit: self.info.blocks - 1,
                });
            }
        }
        self.kv.copy_block(from as usize, to as usize);
        Ok(())
    }

    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        if slot as usize >= self.recurrent.slots() {
            let limit = self.recurrent.slots().saturating_sub(1);
            return Err(EngineError::Capacity { what: "slot", given: slot as usize, limit });
        }
        self.recurrent.roll_back(slot as usize);
        Ok(())
    }

    fn last_step_times(&self) -> Vec<OpTime> {
        let mut out: Vec<(String, u64)> = Vec::new();
        for (kernel, time_ns) in self.kernels.iter().zip(&self.times_ns) {
            match out.iter_mut().find(|(op, _)| op == kernel.name()) {
                Some((_, sum)) => *sum += time_ns,
                None => out.push((kernel.name().into(), *time_ns)),
            }
        }
        out.into_iter().map(|(op, ns)| OpTime { op, time_us: ns.div_ceil(1000) }).collect()
    }
}
