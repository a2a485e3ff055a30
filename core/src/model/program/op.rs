//! What an op is: a name, a cost and a plain reference.

use super::{Axes, Axis, Block, NodeCost, OpNode, Program, StateId, StoredSizes, ValueId, WeightId};
use crate::files::StoredTensor;
use std::any::Any;
use std::fmt::Debug;

/// An op with its constants. One file an op under `ops/`, one line in [`super::ops::NAMES`].
pub trait Op: Debug + Send + Sync + Any {
    /// The op's name, the key by which a backend finds its kernel.
    fn name(&self) -> &'static str;

    /// What one run of the op must read, write and compute at these axes, with weights as stored.
    fn cost(&self, node: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost;

    /// The reference: plain loops over f32 values with f64 sums, written for reading.
    ///
    /// # Errors
    /// A tensor that cannot be read or has another shape than the program declares.
    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError>;

    /// For a backend that needs the op's constants.
    fn as_any(&self) -> &dyn Any;
}

/// A node with the tables its ids point into.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    /// The program.
    pub program: &'a Program,
    /// The block the node stands in.
    pub block: &'a Block,
    /// The block use (for the layer).
    pub place: super::BlockUse,
    /// The node.
    pub node: &'a OpNode,
}

impl NodeView<'_> {
    /// Width of the i-th value read.
    pub fn read_width(&self, i: usize) -> usize {
        self.program.values[self.node.reads[i].at()].width
    }

    /// Width of the i-th value written.
    pub fn write_width(&self, i: usize) -> usize {
        self.program.values[self.node.writes[i].at()].width
    }

    /// Rows of the first value written.
    pub fn rows(&self, axes: &Axes) -> u64 {
        match self.program.values[self.node.writes[0].at()].axis {
            Axis::Tokens => axes.tokens(),
            Axis::Rows => axes.rows(),
        }
    }

    /// Checkpoint tensor of the i-th weight.
    pub fn tensor(&self, i: usize) -> String {
        self.program.tensor_name(self.place, self.node.weights[i])
    }

    /// Declared shape of the i-th weight.
    pub fn weight_shape(&self, i: usize) -> &[usize] {
        &self.block.weights[self.node.weights[i].at()].shape
    }
}

/// Why the plain reference stopped.
#[derive(Debug, thiserror::Error)]
pub enum PlainError {
    /// A tensor could not be read.
    #[error("reading tensor `{name}`")]
    Tensor {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<crate::files::FileError>,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
}

/// What the plain reference of an op works on: the values of one step of ONE sequence, its weights and its state.
///
/// The plain executor runs sequences one after the other, so here T counts the tokens of one sequence.
pub struct PlainCx<'a> {
    /// The node and its tables.
    pub view: NodeView<'a>,
    /// Token ids of the step, `[T]`.
    pub tokens: &'a [u32],
    /// Rows of the pass before that go with the tokens, `[T, width]`; empty but in a draft pass.
    pub carried: &'a [f32],
    /// Position of the step's first token; token t stands at `past + t`.
    pub past: usize,
    /// Tokens the sequence is known to have, at least `past` and T together.
    pub length: usize,
    /// Indices into the step's tokens whose logits are wanted, `[R]`.
    pub rows: &'a [u32],
    /// All values of the program by id; each `[rows, width]`.
    pub values: &'a mut [Vec<f32>],
    /// States of this block use by [`StateId`].
    pub states: &'a mut [PlainState],
    /// The tensor of a weight of this block use.
    pub tensor: &'a dyn Fn(WeightId) -> StoredTensor,
}

impl PlainCx<'_> {
    /// The i-th value read, as a copy, so that an in-place op stays simple.
    pub fn read(&self, i: usize) -> Vec<f32> {
        self.values[self.id_read(i).at()].clone()
    }

    /// Replaces the i-th value written.
    pub fn write(&mut self, i: usize, value: Vec<f32>) {
        let id = self.view.node.writes[i];
        self.values[id.at()] = value;
    }

    /// The i-th weight as `[rows][row_len]` f32.
    ///
    /// # Errors
    /// The tensor cannot be read.
    pub fn weight(&self, i: usize) -> Result<Vec<Vec<f32>>, PlainError> {
        let tensor = (self.tensor)(self.view.node.weights[i]);
        let (rows, len) = (tensor.rows(), tensor.row_len());
        (0..rows)
            .map(|row| {
                let mut out = vec![0.0; len];
                tensor
                    .dequant_rows(row..row + 1, &mut out)
                    .map_err(|source| PlainError::Tensor { name: tensor.name().to_string(), source: source.into() })?;
                Ok(out)
            })
            .collect()
    }

    /// The i-th weight as one flat vector.
    ///
    /// # Errors
    /// The tensor cannot be read.
    pub fn vector(&self, i: usize) -> Result<Vec<f32>, PlainError> {
        Ok(self.weight(i)?.concat())
    }

    /// The i-th state, keys and values.
    pub fn state(&mut self, i: usize) -> &mut PlainKv {
        let id: StateId = self.view.node.states[i];
        &mut self.states[id.at()].kv
    }

    /// The i-th state, the elements of a recurrence.
    pub fn elements(&mut self, i: usize) -> &mut [f32] {
        let id: StateId = self.view.node.states[i];
        &mut self.states[id.at()].elements
    }

    fn id_read(&self, i: usize) -> ValueId {
        self.view.node.reads[i]
    }
}

/// A state of one sequence in one layer; which field is in use follows from its kind.
#[derive(Clone, Debug, Default)]
pub struct PlainState {
    /// Of attention.
    pub kv: PlainKv,
    /// Of a recurrence, in the declared shape.
    pub elements: Vec<f32>,
}

/// Keys and values of one sequence in one layer, every position kept: `[position][head * dim]`.
#[derive(Clone, Debug, Default)]
pub struct PlainKv {
    /// Keys by position.
    pub keys: Vec<Vec<f32>>,
    /// Values by position.
    pub values: Vec<Vec<f32>>,
}
