//! What runs a step: the seam between the runtime and a backend.

use super::StepBatch;
use crate::error::{Diagnose, ErrorKind};
use serde::{Deserialize, Serialize};

/// Bytes an engine holds, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryUse {
    /// Weights read where they lie (mapped files or device copies).
    pub weights_bytes: u64,
    /// Packed forms of weights.
    pub packs_bytes: u64,
    /// KV cache and recurrent state.
    pub state_bytes: u64,
    /// Activations of a step.
    pub activations_bytes: u64,
    /// Scratch space of kernels.
    pub workspace_bytes: u64,
}

impl MemoryUse {
    /// All of it.
    pub const fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.packs_bytes + self.state_bytes + self.activations_bytes + self.workspace_bytes
    }
}

/// What an executor offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExecutorInfo {
    /// `plain`, `exact`, `cpu`, `cuda:0`, …
    pub name: String,
    /// Tokens the head scores: the width of a logits row.
    pub vocab: usize,
    /// Positions a KV block holds.
    pub block_tokens: usize,
    /// KV blocks there are.
    pub blocks: usize,
    /// Slots of constant-size state: most sequences alive at once.
    pub slots: usize,
    /// Longest sequence it can run.
    pub max_context: usize,
    /// Most tokens of one step.
    pub max_step_tokens: usize,
    /// Most logits rows of one step.
    pub max_step_rows: usize,
    /// Bytes of recurrent state a sequence holds whatever its length; 0 without recurrent layers. Such state cannot be
    /// shared between sequences, and goes back only to where it was saved.
    #[serde(default)]
    pub slot_bytes: u64,
    /// Tokens past which all positions of a sequence are computed otherwise, if there is such a limit: the state of a
    /// sequence that grows past it is of no use.
    #[serde(default)]
    pub long_above: Option<usize>,
    /// Whether [`Executor::draft`] works: the model has a drafting head and the executor runs it.
    #[serde(default)]
    pub drafts: bool,
    /// Bytes of a key or value row of one head, by head size, for the costs of state.
    pub kv_row_bytes: Vec<(usize, usize)>,
    /// Bytes as this engine stores each tensor it reads in a step, by checkpoint name, so that a ceiling counts what
    /// is really read.
    pub stored_bytes: Vec<(String, u64)>,
    /// Number format of the matrix products: (few rows, many rows).
    pub precision: (crate::model::program::Precision, crate::model::program::Precision),
    /// Memory held.
    pub memory: MemoryUse,
}

/// Time one op took in the last step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OpTime {
    /// Op name, or the claiming plugin's.
    pub op: String,
    /// Microseconds over all layers.
    pub time_us: u64,
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The step asks for more than the executor offers.
    #[error("step refused: {what} is {given}, at most {limit} fit")]
    Capacity {
        /// What is too large.
        what: &'static str,
        /// What was asked.
        given: usize,
        /// What fits.
        limit: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
    /// Not enough memory for what was asked.
    #[error("{what} needs {needed_bytes} bytes and {free_bytes} are free")]
    Memory {
        /// What it is for.
        what: String,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// A kernel failed.
    #[error("{op}: {message}")]
    Kernel {
        /// The op or plugin.
        op: String,
        /// What happened.
        message: String,
    },
    /// The model cannot be run by this executor.
    #[error("{message}")]
    Unsupported {
        /// What is not supported, and what is.
        message: String,
    },
}

impl Diagnose for EngineError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Capacity { .. } | Self::Token { .. } | Self::Unsupported { .. } => ErrorKind::Input,
            Self::Memory { .. } => ErrorKind::Environment,
            Self::Kernel { .. } => ErrorKind::Engine,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Memory { .. } => Some("lower `context` or `max_batch` in engine.json, or free memory".into()),
            _ => None,
        }
    }
}

/// Runs steps. One thread owns it; it allocates nothing per step that grows with the run.
pub trait Executor: Send {
    /// What it offers.
    fn info(&self) -> &ExecutorInfo;

    /// Runs one step and puts the wanted logits into `logits`, `[R, vocab]` (resized as needed).
    ///
    /// # Errors
    /// The step is refused or a kernel failed; state of the step's positions is then undefined, earlier ones hold.
    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError>;

    /// Copies all layers of a KV block, for copy-on-write of shared prefixes.
    ///
    /// # Errors
    /// A block that does not exist.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError>;

    /// Puts the recurrent state of a slot back to where it was before the trial tokens of the slot's last step. Only
    /// called for executors with recurrent state; keys and values need nothing, later positions overwrite them.
    ///
    /// # Errors
    /// A slot that does not exist.
    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        let _ = slot;
        Ok(())
    }

    /// Runs the drafting head on tokens of the pass before, each the successor of the one whose outcome it goes with
    /// ([`StepBatch::carry`]), and puts the wanted logits into `logits`. Keys and values of the head lie in the same
    /// blocks as the trunk's.
    ///
    /// # Errors
    /// There is no drafting head, the step is refused, or a kernel failed.
    fn draft(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        let _ = (batch, logits);
        Err(EngineError::Unsupported { message: format!("executor `{}` has no drafting head", self.info().name) })
    }

    /// Where the time of the last step went, if this executor measures it.
    fn last_step_times(&self) -> Vec<OpTime> {
        Vec::new()
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn info(&self) -> &ExecutorInfo {
        (**self).info()
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        (**self).step(batch, logits)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        (**self).copy_block(from, to)
    }

    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        (**self).roll_back(slot)
    }

    fn draft(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        (**self).draft(batch, logits)
    }

    fn last_step_times(&self) -> Vec<OpTime> {
        (**self).last_step_times()
    }
}
