//! Recurrent state on the CPU: f32 elements by slot, and what they were before tokens on trial.
//!
//! A kernel advances a sequence's elements in place. Before the first of the step's trial tokens it copies them to
//! the saved ones (each worker the part it advances); [`RecurrentStore::roll_back`] puts those back. A sequence that
//! starts finds zeros.

use super::step::StateKey;
use crit_core::model::program::{Program, StateKind};
use crit_core::runtime::StepBatch;
use std::collections::HashMap;

struct Area {
    elements: usize,
    now: Vec<f32>,
    saved: Vec<f32>,
}

/// All recurrent memory of an executor.
pub struct RecurrentStore {
    slots: usize,
    areas: Vec<Area>,
    index: HashMap<StateKey, usize>,
}

/// A state's elements, slot after slot.
pub struct SlotStates<'a> {
    /// Elements of a slot.
    pub elements: usize,
    /// As they are.
    pub now: &'a mut [f32],
    /// As they were before tokens on trial.
    pub saved: &'a mut [f32],
}

impl RecurrentStore {
    /// Room for `slots` sequences in every recurrent state of `program`'s step.
    pub fn new(program: &Program, slots: usize) -> Self {
        let (mut areas, mut index) = (Vec::new(), HashMap::new());
        for (use_index, place) in program.uses().enumerate() {
            for (state, decl) in program.blocks[place.block].states.iter().enumerate() {
                let elements = decl.kind.recurrent_elements();
                if matches!(decl.kind, StateKind::Recurrent { .. }) {
                    index.insert(StateKey { use_index, state }, areas.len());
                    let zeros = vec![0.0; elements * slots];
                    areas.push(Area { elements, now: zeros.clone(), saved: zeros });
                }
            }
        }
        Self { slots, areas, index }
    }

    /// Bytes such a store takes.
    pub fn bytes_needed(program: &Program, slots: usize) -> u64 {
        2 * slots as u64 * program.slot_bytes()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.areas.iter().map(|area| 4 * (area.now.len() + area.saved.len()) as u64).sum()
    }

    /// Slots there are.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Clears the slots of sequences that start in this step.
    pub fn begin(&mut self, batch: &StepBatch) {
        for seq in batch.seqs.iter().filter(|seq| seq.past == 0) {
            for area in &mut self.areas {
                let range = seq.slot as usize * area.elements..(seq.slot as usize + 1) * area.elements;
                area.now[range.clone()].fill(0.0);
                area.saved[range].fill(0.0);
            }
        }
    }

    /// A state's elements in all slots.
    ///
    /// # Panics
    /// The state is not recurrent: lowering has it from the program.
    pub fn slots_of(&mut self, key: StateKey) -> SlotStates<'_> {
        let Area { elements, now, saved } = &mut self.areas[self.index[&key]];
        SlotStates { elements: *elements, now, saved }
    }

    /// Puts a slot's state back to where it was before the trial tokens of its last step.
    pub fn roll_back(&mut self, slot: usize) {
        for area in &mut self.areas {
            let range = slot * area.elements..(slot + 1) * area.elements;
            area.now[range.clone()].copy_from_slice(&area.saved[range]);
        }
    }
}
