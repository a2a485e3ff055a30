//! What recurrences share: tasks over sequences, heads and blocks of columns, each with a piece of the state of its own.
//!
//! The columns of a head's state never meet, so a head is cut into blocks of columns small enough that their state
//! stays in the first cache and their sums in registers. A block's state lies in one piece, `[rows][columns]`: the
//! order within a slot is the kernel's own.

use crate::cpu::Pool;
use crate::cpu::shared::Shared;
use crate::exec::recurrent::SlotStates;
use crit_core::runtime::{EngineError, SeqStep, StepBatch};

/// How a recurrence's heads are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) heads: usize,
    /// Rows of a head's state.
    pub(super) rows: usize,
    /// Columns of a head's state.
    pub(super) columns: usize,
    /// Columns of a block.
    pub(super) block: usize,
}

impl Cut {
    pub(super) fn new(heads: usize, rows: usize, columns: usize) -> Self {
        let block = [32, 16, 8, 4, 2].into_iter().find(|n| columns.is_multiple_of(*n)).unwrap_or(1);
        Self { heads, rows, columns, block }
    }

    /// Runs `work` for every sequence, head and block of columns.
    pub(super) fn run(
        self,
        pool: &Pool,
        batch: &StepBatch,
        states: SlotStates<'_>,
        op: &'static str,
        work: impl Fn(Piece<'_>) + Sync,
    ) -> Result<(), EngineError> {
        let (now, saved) = (Shared::new(states.now), Shared::new(states.saved));
        let blocks = self.columns / self.block;
        let size = self.rows * self.block;
        pool.run(batch.seqs.len() * self.heads * blocks, &|task, _| {
            let (seq, place) = (&batch.seqs[task / (self.heads * blocks)], task % (self.heads * blocks));
            let at = seq.slot as usize * states.elements + place * size;
            // SAFETY: no two sequences of a step have one slot, and no two tasks of a sequence one place.
            let (now, saved) = unsafe { (now.part(at, size), saved.part(at, size)) };
            work(Piece { seq, head: place / blocks, column: place % blocks * self.block, now, saved });
        })
        .map_err(|e| EngineError::Kernel { op: op.into(), message: e.to_string() })
    }
}

/// A block of columns of one head of one sequence.
pub(super) struct Piece<'a> {
    pub(super) seq: &'a SeqStep,
    pub(super) head: usize,
    /// First column of the block within the head.
    pub(super) column: usize,
    /// Its state, `[rows][block]`.
    pub(super) now: &'a mut [f32],
    saved: &'a mut [f32],
}

impl Piece<'_> {
    /// Saves the state if token `t` of the sequence's step is the first on trial.
    pub(super) fn save_before(&mut self, t: usize) {
        if self.seq.trial > 0 && t == (self.seq.tokens - self.seq.trial) as usize {
            self.saved.copy_from_slice(self.now);
        }
    }
}
