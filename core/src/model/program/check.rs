//! Proves a program's invariants before anything is lowered.

use super::{Program, ValueId};
use crate::error::{Diagnose, ErrorKind};

/// A program that breaks its own rules: a fault of the architecture's code, not of the user.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProgramError {
    /// There is no `step` entry.
    #[error("program `{arch}` has no `step` entry")]
    NoStep {
        /// The architecture.
        arch: &'static str,
    },
    /// A value is read before anything wrote it.
    #[error("{place}: value `{value}` is read before it is written")]
    Unwritten {
        /// Block and op.
        place: String,
        /// The value.
        value: &'static str,
    },
    /// A weight or state that no op uses.
    #[error("block `{block}` declares {what} `{role}` and no op uses it")]
    Unused {
        /// The block.
        block: &'static str,
        /// `weight` or `state`.
        what: &'static str,
        /// Its role.
        role: &'static str,
    },
    /// A state of another layer that is not there, comes later, or is of another kind.
    #[error("{place}: layer {owner} owns no such state `{role}` before it")]
    Owner {
        /// The block.
        place: &'static str,
        /// The layer it names.
        owner: usize,
        /// The state.
        role: &'static str,
    },
    /// An index that points nowhere.
    #[error("{place}: {what} index out of range")]
    Dangling {
        /// Block and op.
        place: String,
        /// What the index is of.
        what: &'static str,
    },
}

impl Diagnose for ProgramError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Internal
    }
}

impl Program {
    /// Checks the invariants of the module's documentation.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), ProgramError> {
        if self.entry("step").is_none() {
            return Err(ProgramError::NoStep { arch: self.arch });
        }
        self.check_indices()?;
        self.check_used()?;
        self.check_owners()?;
        self.entries.iter().try_for_each(|entry| self.check_order(entry))
    }

    fn check_indices(&self) -> Result<(), ProgramError> {
        for block in &self.blocks {
            for (i, node) in block.ops.iter().enumerate() {
                let dangling = |what| ProgramError::Dangling { place: place(block.kind, i, node.op.name()), what };
                if node.reads.iter().chain(&node.writes).any(|id| id.at() >= self.values.len()) {
                    return Err(dangling("value"));
                }
                if node.weights.iter().any(|id| id.at() >= block.weights.len()) {
                    return Err(dangling("weight"));
                }
                if node.states.iter().any(|id| id.at() >= block.states.len()) {
                    return Err(dangling("state"));
                }
            }
        }
        Ok(())
    }

    fn check_owners(&self) -> Result<(), ProgramError> {
        let mut owned = Vec::new();
        for place in &self.step().uses {
            let block = &self.blocks[place.block];
            for state in &block.states {
                match state.owner {
                    None => owned.push((place.layer, state.role, &state.kind)),
                    Some(owner) if owned.contains(&(Some(owner), state.role, &state.kind)) => {}
                    Some(owner) => return Err(ProgramError::Owner { place: block.kind, owner, role: state.role }),
                }
            }
        }
        Ok(())
    }

    fn check_used(&self) -> Result<(), ProgramError> {
        for block in &self.blocks {
            for (i, weight) in block.weights.iter().enumerate() {
                if !block.ops.iter().any(|op| op.weights.iter().any(|id| id.at() == i)) {
                    return Err(ProgramError::Unused { block: block.kind, what: "weight", role: weight.role });
                }
            }
            for (i, state) in block.states.iter().enumerate() {
                if !block.ops.iter().any(|op| op.states.iter().any(|id| id.at() == i)) {
                    return Err(ProgramError::Unused { block: block.kind, what: "state", role: state.role });
                }
            }
        }
        Ok(())
    }

    fn check_order(&self, entry: &super::Entry) -> Result<(), ProgramError> {
        let mut written = vec![false; self.values.len()];
        if let Some(carried) = self.carried().filter(|_| entry.name == "draft") {
            written[carried.at()] = true;
        }
        for (at, node) in self.nodes(entry) {
            let unwritten = |id: &&ValueId| !written[id.at()];
            if let Some(id) = node.reads.iter().find(unwritten) {
                let block = self.blocks[at.place.block].kind;
                let place = place(block, at.op_index, node.op.name());
                return Err(ProgramError::Unwritten { place, value: self.values[id.at()].name });
            }
            node.writes.iter().for_each(|id| written[id.at()] = true);
        }
        Ok(())
    }
}

fn place(block: &str, op: usize, name: &str) -> String {
    format!("block `{block}`, op {op} ({name})")
}
