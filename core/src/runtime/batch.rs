//! What one step runs on: tokens, positions, tables. Host data; a backend copies it to where its kernels read.

use crate::model::program::{Axes, SeqAxes};

/// One sequence's part in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqStep {
    /// First of its tokens in [`StepBatch::tokens`].
    pub first: u32,
    /// Its tokens in this step, at least one.
    pub tokens: u32,
    /// Positions its state holds before this step; token i of the step stands at `past + i`.
    pub past: u32,
    /// Tokens the sequence is known to have, at least `past + tokens`: some models compute all positions of a long sequence
    /// otherwise than those of a short one.
    pub length: u32,
    /// Blocks of the KV cache that hold positions `0 .. past + tokens`, in order.
    pub blocks: Vec<u32>,
    /// Slot of its constant-size state (recurrent layers), unique among the live sequences.
    pub slot: u32,
    /// How many of its last tokens are on trial: recurrent state is saved before them, so that
    /// [`super::Executor::roll_back`] can put it back.
    pub trial: u32,
}

/// A step: some tokens of some sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepBatch {
    /// Token ids, sequence by sequence, `[T]`.
    pub tokens: Vec<u32>,
    /// Absolute position of each token, `[T]`.
    pub positions: Vec<u32>,
    /// The sequences, in token order.
    pub seqs: Vec<SeqStep>,
    /// Indices into `tokens` whose logits are wanted, ascending, `[R]`.
    pub rows: Vec<u32>,
    /// In a draft pass: for each token the row of the pass before whose outcome it goes with, `[T]`.
    pub carry: Vec<u32>,
}

impl StepBatch {
    /// Adds a sequence's tokens; `wanted` says for which of them (by index within the sequence's tokens) logits are
    /// needed.
    pub fn push(
        &mut self,
        tokens: &[u32],
        past: u32,
        blocks: Vec<u32>,
        slot: u32,
        wanted: impl IntoIterator<Item = u32>,
    ) {
        let first = self.tokens.len() as u32;
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((0..tokens.len() as u32).map(|i| past + i));
        self.rows.extend(wanted.into_iter().map(|i| first + i));
        let tokens = tokens.len() as u32;
        self.seqs.push(SeqStep { first, tokens, past, length: past + tokens, blocks, slot, trial: 0 });
    }

    /// Says how many tokens the sequence added last is known to have.
    pub fn known(&mut self, length: usize) {
        if let Some(seq) = self.seqs.last_mut() {
            seq.length = u32::try_from(length).unwrap_or(u32::MAX);
        }
    }

    /// Says that the last `trial` tokens of the sequence added last are on trial.
    pub fn on_trial(&mut self, trial: u32) {
        if let Some(seq) = self.seqs.last_mut() {
            seq.trial = trial.min(seq.tokens);
        }
    }

    /// The axes of this step, for its cost.
    pub fn axes(&self) -> Axes {
        let seqs = self
            .seqs
            .iter()
            .map(|s| {
                let rows = self.rows.iter().filter(|row| (s.first..s.first + s.tokens).contains(row)).count() as u32;
                SeqAxes { tokens: s.tokens, past: s.past, rows }
            })
            .collect();
        Axes { seqs }
    }
}
