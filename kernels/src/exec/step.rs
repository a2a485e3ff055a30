//! What kernels see of a step, and what they are.

use super::kv::KvStore;
use super::recurrent::RecurrentStore;
use crate::cpu::{Isa, Pool};
use crit_core::files::StoredTensor;
use crit_core::model::program::op::NodeView;
use crit_core::model::program::{Axis, NodeRef, Precision, Program, ValueId};
use crit_core::runtime::{EngineError, StepBatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a state lives in the [`KvStore`]: the block use and the state's index within its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateKey {
    /// Index of the block use among those of all entries.
    pub use_index: usize,
    /// Index of the state in its block.
    pub state: usize,
}

/// The activations of a step. A kernel takes the ones it writes and puts them back.
pub struct Values {
    buffers: Vec<Vec<f32>>,
    widths: Vec<usize>,
    axes: Vec<Axis>,
    stamps: Vec<u64>,
    tokens: usize,
    rows: usize,
}

impl Values {
    /// Room for the values of `program` in steps of at most `tokens` tokens and `rows` rows.
    pub fn new(program: &Program, tokens: usize, rows: usize) -> Self {
        let size = |v: &crit_core::model::program::ValueDecl| match v.axis {
            Axis::Tokens => v.width * tokens,
            Axis::Rows => v.width * rows,
        };
        Self {
            buffers: program.values.iter().map(|v| vec![0.0; size(v)]).collect(),
            widths: program.values.iter().map(|v| v.width).collect(),
            axes: program.values.iter().map(|v| v.axis).collect(),
            stamps: program.values.iter().map(|_| next_stamp()).collect(),
            tokens: 0,
            rows: 0,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|b| b.len() as u64 * 4).sum()
    }

    /// Says how many tokens and rows the step has.
    pub fn begin(&mut self, tokens: usize, rows: usize) {
        (self.tokens, self.rows) = (tokens, rows);
    }

    /// Rows a value has in this step.
    pub fn rows(&self, id: ValueId) -> usize {
        match self.axes[id.at()] {
            Axis::Tokens => self.tokens,
            Axis::Rows => self.rows,
        }
    }

    /// A value, `[rows, width]`.
    pub fn get(&self, id: ValueId) -> &[f32] {
        &self.buffers[id.at()][..self.rows(id) * self.widths[id.at()]]
    }

    /// A value's whole buffer, as the pass before left it.
    pub fn left(&self, id: ValueId) -> &[f32] {
        &self.buffers[id.at()]
    }

    /// Takes a value's buffer out, so that it can be written while others are read. It must be [`Values::put`] back.
    pub fn take(&mut self, id: ValueId) -> Vec<f32> {
        self.stamps[id.at()] = next_stamp();
        std::mem::take(&mut self.buffers[id.at()])
    }

    /// Puts a buffer back.
    pub fn put(&mut self, id: ValueId, buffer: Vec<f32>) {
        self.buffers[id.at()] = buffer;
    }

    /// A number that stands for what was last written into a value; no two writings in a process have the same.
    pub fn stamp(&self, id: ValueId) -> u64 {
        self.stamps[id.at()]
    }

    /// Elements a value has in this step.
    pub fn len(&self, id: ValueId) -> usize {
        self.rows(id) * self.widths[id.at()]
    }
}

fn next_stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// What a kernel works on in a step.
pub struct StepCx<'a> {
    /// Tokens, positions, tables.
    pub batch: &'a StepBatch,
    /// Activations.
    pub values: &'a mut Values,
    /// Keys and values.
    pub kv: &'a mut KvStore,
    /// State of recurrences.
    pub recurrent: &'a mut RecurrentStore,
    /// Threads.
    pub pool: &'a Pool,
}

/// A lowered op, or a lowered group of ops.
pub trait Kernel: Send {
    /// Op or plugin name, for times and errors.
    fn name(&self) -> &str;

    /// Bytes of packed weights it holds.
    fn packs_bytes(&self) -> u64 {
        0
    }

    /// Tensors it reads in a step with the bytes it stores them in, where that is not as the checkpoint does.
    fn stored_bytes(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Allocates what steps of at most `tokens` tokens and `rows` rows need; returns the bytes.
    ///
    /// # Errors
    /// Not enough memory.
    fn prepare(&mut self, tokens: usize, rows: usize) -> Result<u64, EngineError> {
        let _ = (tokens, rows);
        Ok(0)
    }

    /// Runs it.
    ///
    /// # Errors
    /// The step asks for something impossible, or a worker failed.
    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError>;
}

/// What lowering an op may look at.
pub struct Lowering<'a> {
    /// The op in its place.
    pub view: NodeView<'a>,
    /// Where it stands.
    pub at: NodeRef,
    /// Its weights, in the op's order.
    pub weights: Vec<StoredTensor>,
    /// Instruction sets to use.
    pub isa: Isa,
    /// Rotation tables of the executor, shared by its ops.
    pub turns: Arc<super::base::TurnTables>,
    /// Working memory of the executor's matrix products, shared by them all.
    pub products: Arc<super::products::Products>,
    /// Threads the kernel will have.
    pub threads: usize,
    /// How KV rows are stored.
    pub kv: Arc<dyn super::kv::KvFormat>,
}

impl Lowering<'_> {
    /// The op's constants as `T`.
    ///
    /// # Panics
    /// The op is of another type: the caller looked it up by name.
    pub fn op<T: 'static>(&self) -> &T {
        self.view.node.op.as_any().downcast_ref().expect("op names are unique, so the name fixes the type")
    }

    /// Key of the op's only state.
    pub fn state(&self) -> StateKey {
        StateKey { use_index: self.at.use_index, state: self.view.node.states[0].at() }
    }
}

/// An op plugin on the CPU: takes nodes it wants; the rest falls to base.
pub trait OpPlugin: Send + Sync {
    /// Lowers the node if the plugin claims it. Two plugins that claim one node are an error.
    ///
    /// # Errors
    /// It claims the node and cannot lower it.
    fn lower(&self, node: &Lowering<'_>) -> Result<Option<Box<dyn Kernel>>, EngineError>;

    /// Number format of the matrix products it takes over, for ceilings: (few rows, many rows).
    fn precision(&self) -> Option<(Precision, Precision)> {
        None
    }
}
