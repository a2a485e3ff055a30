//! The step program: what a model computes in one step, said once.
//!
//! A [`Program`] has named entries (`step`; later `verify`, `draft`). An entry is a list of block uses; a [`Block`] is
//! declared once per layer *kind* (prologue, one per kind of layer, epilogue) and holds typed ops in execution order.
//! Each [`OpNode`] names the values it reads and writes, its weights and its state. From this one description follow
//! the references, the ceilings, the memory plan, and what a plugin may replace.
//!
//! Invariants: a value is written before it is read; an op touches only what its node names; every weight a block
//! declares is used by an op; ids are indices into the tables of this program and of no other. [`Program::check`]
//! proves them.
//!
//! Values are activations of one step, f32 in meaning. Axes: T tokens of the step, R rows whose logits are wanted.

mod check;
mod cost;
pub mod op;
pub mod ops;

pub use check::ProgramError;
pub use cost::{Axes, Cost, NodeCost, Precision, SeqAxes, StoredSizes, entry_cost, node_costs};
pub use op::{Op, PlainCx, PlainError};

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index.
            pub const fn at(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(
    /// A value of the program (index into [`Program::values`]).
    ValueId
);
index!(
    /// A weight of a block (index into [`Block::weights`]).
    WeightId
);
index!(
    /// A state of a block (index into [`Block::states`]).
    StateId
);

/// The leading axis of a value; the trailing one is its constant width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// One row a token of the step.
    Tokens,
    /// One row a position whose logits are wanted.
    Rows,
}

/// An activation: `[axis, width]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueDecl {
    /// Its name, for people and traces.
    pub name: &'static str,
    /// What its rows stand for.
    pub axis: Axis,
    /// Elements a row.
    pub width: usize,
}

/// A weight of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// What the weight is within its block: `q_proj`, `input_norm`, …
    pub role: &'static str,
    /// Tensor name in the checkpoint, `{layer}` standing for the layer number.
    pub tensor: String,
    /// `[out, in]` for matrices, `[n]` for vectors.
    pub shape: Vec<usize>,
    /// The axis a tensor-parallel split would cut, if any.
    pub shard_axis: Option<usize>,
    /// Which part of the stored tensor it is, and how that lies, if it is not all of it as stored.
    pub view: Option<View>,
}

/// A weight that is a part of a stored tensor (q of a fused qkv), or is stored with its last two axes swapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Shape as stored.
    pub stored: Vec<usize>,
    /// Whether the last two axes are swapped: stored `[in, out]`.
    pub transposed: bool,
    /// Rows after swapping, over all leading axes; elements of a vector.
    pub rows: Range<usize>,
}

/// How a state goes back when drafted tokens are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rollback {
    /// Forget the last positions.
    Truncate,
    /// Restore a saved copy.
    Checkpoint,
}

/// A state that lives from step to step, per sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDecl {
    /// What the state is within its block: `kv`.
    pub role: &'static str,
    /// Its kind and sizes.
    pub kind: StateKind,
    /// How it goes back.
    pub rollback: Rollback,
    /// The earlier layer whose state of the same role this is, if it is not the layer's own: read here, never written.
    pub owner: Option<usize>,
}

/// Kinds of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values of attention, one row a position.
    Kv {
        /// Key/value heads.
        heads: usize,
        /// Elements of a key row of one head.
        key_dim: usize,
        /// Elements of a value row of one head; 0 where values are a part of the keys.
        value_dim: usize,
        /// Only this many last positions are ever read, if limited.
        window: Option<usize>,
    },
    /// f32 elements whose number does not depend on the sequence's length: the state of a recurrence, or the last
    /// columns of a convolution. All zero before the first token; kept by slot.
    Recurrent {
        /// Their shape, outermost first: `[heads, key_dim, value_dim]`.
        shape: Vec<usize>,
    },
}

impl StateKind {
    /// f32 elements a sequence holds whatever its length.
    pub fn recurrent_elements(&self) -> usize {
        match self {
            Self::Kv { .. } => 0,
            Self::Recurrent { shape } => shape.iter().product(),
        }
    }
}

impl StateDecl {
    /// A recurrent state of this shape.
    pub fn recurrent(role: &'static str, shape: &[usize]) -> Self {
        Self { role, kind: StateKind::Recurrent { shape: shape.to_vec() }, rollback: Rollback::Checkpoint, owner: None }
    }
}

/// One op in its place: what it computes and what it touches.
#[derive(Clone, Debug)]
pub struct OpNode {
    /// The op and its constants.
    pub op: Arc<dyn Op>,
    /// Values read, in the order the op defines.
    pub reads: Vec<ValueId>,
    /// Values written, in the order the op defines. An in-place op reads and writes the same id.
    pub writes: Vec<ValueId>,
    /// Weights, in the order the op defines.
    pub weights: Vec<WeightId>,
    /// States, in the order the op defines.
    pub states: Vec<StateId>,
}

/// The ops of one layer kind, or of the prologue or epilogue.
#[derive(Clone, Debug)]
pub struct Block {
    /// `prologue`, `layer`, `layer.window`, `epilogue`, …
    pub kind: &'static str,
    /// Weights its ops use.
    pub weights: Vec<WeightDecl>,
    /// States its ops use.
    pub states: Vec<StateDecl>,
    /// Ops in execution order.
    pub ops: Vec<OpNode>,
}

/// A block in an entry's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// Index into [`Program::blocks`].
    pub block: usize,
    /// The layer whose weights and state it uses; `None` for prologue and epilogue.
    pub layer: Option<usize>,
}

/// A named way to run the program.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `step`, `verify`, `draft`.
    pub name: &'static str,
    /// Blocks in execution order.
    pub uses: Vec<BlockUse>,
}

/// What a model computes in a step.
#[derive(Clone, Debug)]
pub struct Program {
    /// Architecture family: `qwen3`, …
    pub arch: &'static str,
    /// Tokens the output head scores.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers with weights of their own.
    pub layers: usize,
    /// Longest context the checkpoint claims.
    pub max_context: usize,
    /// Activations of a step.
    pub values: Vec<ValueDecl>,
    /// Blocks, one per kind.
    pub blocks: Vec<Block>,
    /// Ways to run it; `step` is always there.
    pub entries: Vec<Entry>,
    /// The value that holds the wanted logits, `[R, vocab]`.
    pub logits: ValueId,
    /// Checkpoint tensors that plain decoding leaves out on purpose: beginnings of names, or ends after a `*`.
    pub skips: Vec<String>,
}

impl Program {
    /// The entry called `name`.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The `step` entry.
    ///
    /// # Panics
    /// Never for a program that passed [`Program::check`].
    pub fn step(&self) -> &Entry {
        self.entry("step").expect("a checked program has a step entry")
    }

    /// Every block use, entry by entry: what a [`NodeRef::use_index`] counts.
    pub fn uses(&self) -> impl Iterator<Item = &BlockUse> {
        self.entries.iter().flat_map(|entry| &entry.uses)
    }

    /// The entry that drafts, if there is one.
    pub fn draft(&self) -> Option<&Entry> {
        self.entry("draft")
    }

    /// The value a draft pass takes over from the pass before.
    pub fn carried(&self) -> Option<ValueId> {
        self.nodes(self.draft()?).find(|(_, node)| node.op.name() == "carry").map(|(_, node)| node.reads[0])
    }

    /// The name of a weight of a block use: the checkpoint tensor's, and which part of it the weight is, if not all.
    pub fn tensor_name(&self, place: BlockUse, weight: WeightId) -> String {
        let name = self.stored_name(place, weight);
        match &self.blocks[place.block].weights[weight.at()].view {
            None => name,
            Some(View { transposed, rows, .. }) => {
                let swapped = if *transposed { "^T" } else { "" };
                format!("{name}{swapped}[{}..{}]", rows.start, rows.end)
            }
        }
    }

    /// The checkpoint tensor a weight of a block use lies in.
    pub fn stored_name(&self, place: BlockUse, weight: WeightId) -> String {
        let template = &self.blocks[place.block].weights[weight.at()].tensor;
        match place.layer {
            Some(layer) => template.replace("{layer}", &layer.to_string()),
            None => template.clone(),
        }
    }

    /// All ops of `entry` in execution order, each with its place.
    pub fn nodes<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = (NodeRef, &'a OpNode)> + 'a {
        let before: usize =
            self.entries.iter().take_while(|other| other.name != entry.name).map(|other| other.uses.len()).sum();
        entry.uses.iter().enumerate().flat_map(move |(i, place)| {
            let at = move |op_index| NodeRef { use_index: before + i, op_index, place: *place };
            self.blocks[place.block].ops.iter().enumerate().map(move |(op_index, node)| (at(op_index), node))
        })
    }

    /// Where a state of the step's block use lives: there, or in the block use of the layer that owns it.
    ///
    /// # Panics
    /// Never for a program that passed [`Program::check`].
    pub fn state_home(&self, use_index: usize, state: usize) -> (usize, usize) {
        let uses: Vec<&BlockUse> = self.uses().collect();
        let decl = &self.blocks[uses[use_index].block].states[state];
        let Some(owner) = decl.owner else { return (use_index, state) };
        let own = |place: &BlockUse| {
            let same = |s: &StateDecl| s.role == decl.role && s.kind == decl.kind && s.owner.is_none();
            self.blocks[place.block].states.iter().position(same).filter(|_| place.layer == Some(owner))
        };
        let found = uses[..use_index].iter().enumerate().find_map(|(i, place)| Some((i, own(place)?)));
        found.expect("a checked program's owners come first and have such a state")
    }

    /// Tokens past which all positions of a sequence are computed otherwise, if there is such a limit.
    pub fn long_above(&self) -> Option<usize> {
        let ops = self.blocks.iter().flat_map(|block| &block.ops);
        let rope = |node: &OpNode| node.op.as_any().downcast_ref::<ops::rope::Rope>()?.long.as_ref().map(|l| l.above);
        ops.filter_map(rope).min()
    }

    /// Bytes of a key or value row of one head for every head size the program has, ascending by size.
    pub fn kv_row_bytes(&self, row_bytes: impl Fn(usize) -> usize) -> Vec<(usize, usize)> {
        let sizes: std::collections::BTreeSet<usize> = self
            .blocks
            .iter()
            .flat_map(|block| &block.states)
            .filter_map(|state| match state.kind {
                StateKind::Kv { key_dim, value_dim, .. } => Some([key_dim, value_dim]),
                StateKind::Recurrent { .. } => None,
            })
            .flatten()
            .collect();
        sizes.into_iter().filter(|dim| *dim > 0).map(|dim| (dim, row_bytes(dim))).collect()
    }

    /// State bytes one more token of context takes, given the bytes of a key row and of a value row of one head.
    pub fn kv_bytes_per_token(&self, row_bytes: impl Fn(usize) -> usize) -> usize {
        self.uses()
            .flat_map(|place| &self.blocks[place.block].states)
            .filter(|state| state.owner.is_none())
            .map(|state| match &state.kind {
                StateKind::Kv { heads, key_dim, value_dim, .. } => {
                    let bytes = |dim| if dim == 0 { 0 } else { row_bytes(dim) };
                    heads * (bytes(*key_dim) + bytes(*value_dim))
                }
                StateKind::Recurrent { .. } => 0,
            })
            .sum()
    }

    /// Bytes of recurrent state a sequence holds whatever its length; 0 for a model without.
    pub fn slot_bytes(&self) -> u64 {
        let states = self.uses().flat_map(|place| &self.blocks[place.block].states);
        states.map(|state| 4 * state.kind.recurrent_elements() as u64).sum()
    }
}

/// Where an op stands in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// Index of the block use among those of all entries ([`Program::uses`]).
    pub use_index: usize,
    /// Index of the op in its block.
    pub op_index: usize,
    /// The block use itself.
    pub place: BlockUse,
}
