//! Collects a program block by block: values and weights are declared where they are first named.
//!
//! A family that is no plain dense decoder writes its blocks with this, often out of the parts that others share. Rows
//! and widths are said once a value: naming a value again gives the same one.

use super::ArchError;
use crate::model::program::ops::linear::Linear;
use crate::model::program::{
    Axis, Block, BlockUse, Entry, Op, OpNode, Program, StateDecl, StateId, ValueDecl, ValueId, View, WeightDecl,
    WeightId,
};
use std::sync::Arc;

/// What a program is besides its blocks.
pub(crate) struct Sizes {
    /// Tokens the head scores.
    pub vocab: usize,
    /// Residual width.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Longest context.
    pub max_context: usize,
}

/// A program in the making.
pub(crate) struct ProgramBuilder {
    arch: &'static str,
    values: Vec<ValueDecl>,
    blocks: Vec<Block>,
    entries: Vec<Entry>,
    skips: Vec<String>,
}

impl ProgramBuilder {
    /// An empty program with an empty `step` entry.
    pub(crate) fn new(arch: &'static str) -> Self {
        let entries = vec![Entry { name: "step", uses: Vec::new() }];
        Self { arch, values: Vec::new(), blocks: Vec::new(), entries, skips: Vec::new() }
    }

    /// A value with one row a token.
    pub(crate) fn tokens(&mut self, name: &'static str, width: usize) -> ValueId {
        self.value(name, Axis::Tokens, width)
    }

    /// A value with one row a wanted position.
    pub(crate) fn rows(&mut self, name: &'static str, width: usize) -> ValueId {
        self.value(name, Axis::Rows, width)
    }

    /// Layers of one program that need another width under the same role give it another name.
    fn value(&mut self, name: &'static str, axis: Axis, width: usize) -> ValueId {
        let known = self.values.iter().position(|v| v.name == name);
        let at = known.unwrap_or_else(|| {
            self.values.push(ValueDecl { name, axis, width });
            self.values.len() - 1
        });
        debug_assert_eq!((self.values[at].axis, self.values[at].width), (axis, width), "value `{name}` has one shape");
        ValueId(at as u32)
    }

    /// Adds a block; returns its index for [`ProgramBuilder::place`].
    pub(crate) fn add(&mut self, block: BlockBuilder) -> usize {
        self.blocks.push(block.block);
        self.blocks.len() - 1
    }

    /// Appends a block use to the `step` entry.
    pub(crate) fn place(&mut self, block: usize, layer: Option<usize>) {
        self.place_in("step", block, layer);
    }

    /// Appends a block use to an entry, which comes to be if it was not there.
    pub(crate) fn place_in(&mut self, entry: &'static str, block: usize, layer: Option<usize>) {
        let place = BlockUse { block, layer };
        match self.entries.iter_mut().find(|e| e.name == entry) {
            Some(entry) => entry.uses.push(place),
            None => self.entries.push(Entry { name: entry, uses: vec![place] }),
        }
    }

    /// Tensors that plain decoding leaves out on purpose: those that begin so, or after a `*` those that end so.
    pub(crate) fn skip(&mut self, pattern: impl Into<String>) {
        self.skips.push(pattern.into());
    }

    /// Lets text decoding ignore what a multi-modal checkpoint has besides its text model.
    pub(crate) fn skip_other_modalities(&mut self) {
        let towers = [
            "vision_tower.",
            "vision_model.",
            "audio_tower.",
            "multi_modal_projector.",
            "embed_vision.",
            "embed_audio.",
            "visual.",
        ];
        for tower in towers {
            self.skip(tower);
            self.skip(format!("model.{tower}"));
        }
    }

    /// The checked program.
    ///
    /// # Errors
    /// An invariant of the program does not hold.
    pub(crate) fn finish(self, sizes: &Sizes, logits: ValueId) -> Result<Program, ArchError> {
        let program = Program {
            arch: self.arch,
            vocab: sizes.vocab,
            hidden: sizes.hidden,
            layers: sizes.layers,
            max_context: sizes.max_context,
            values: self.values,
            blocks: self.blocks,
            entries: self.entries,
            logits,
            skips: self.skips,
        };
        program.check()?;
        Ok(program)
    }
}

/// A block in the making.
pub(crate) struct BlockBuilder {
    block: Block,
    /// Put before module names: `model.layers.{layer}.` in layers.
    prefix: &'static str,
}

impl BlockBuilder {
    /// A block whose tensors are named in full: prologue and epilogue.
    pub(crate) fn new(kind: &'static str) -> Self {
        Self::under(kind, "")
    }

    /// A layer's block; `prefix` stands before every module name and holds `{layer}`.
    pub(crate) fn under(kind: &'static str, prefix: &'static str) -> Self {
        let block = Block { kind, weights: Vec::new(), states: Vec::new(), ops: Vec::new() };
        Self { block, prefix }
    }

    /// Declares the weight stored as `tensor` (below the block's prefix).
    pub(crate) fn weight(
        &mut self,
        role: &'static str,
        tensor: &str,
        shape: &[usize],
        shard_axis: Option<usize>,
    ) -> WeightId {
        self.view(role, tensor, shape, shard_axis, None)
    }

    /// Declares the weight that is `view` of what is stored as `tensor` (below the block's prefix).
    pub(crate) fn view(
        &mut self,
        role: &'static str,
        tensor: &str,
        shape: &[usize],
        shard_axis: Option<usize>,
        view: Option<View>,
    ) -> WeightId {
        let tensor = format!("{}{tensor}", self.prefix);
        self.block.weights.push(WeightDecl { role, tensor, shape: shape.to_vec(), shard_axis, view });
        WeightId(self.block.weights.len() as u32 - 1)
    }

    /// Declares a state.
    pub(crate) fn state(&mut self, state: StateDecl) -> StateId {
        self.block.states.push(state);
        StateId(self.block.states.len() as u32 - 1)
    }

    /// Adds an op without state.
    pub(crate) fn op(&mut self, op: impl Op, reads: &[ValueId], writes: &[ValueId], weights: &[WeightId]) {
        self.node(op, reads, writes, weights, &[]);
    }

    /// Adds an op.
    pub(crate) fn node(
        &mut self,
        op: impl Op,
        reads: &[ValueId],
        writes: &[ValueId],
        weights: &[WeightId],
        states: &[StateId],
    ) {
        self.block.ops.push(OpNode {
            op: Arc::new(op),
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            weights: weights.to_vec(),
            states: states.to_vec(),
        });
    }

    /// Adds a linear map `[out, in]` stored as `module.weight` and, with `bias`, `module.bias`.
    pub(crate) fn linear(&mut self, role: &'static str, module: &str, map: Map, from: ValueId, to: ValueId) {
        let [out, input] = map.shape;
        let (mut weight_view, mut bias_view) = (None, None);
        if let Some(Stored { outputs, first, transposed }) = map.stored {
            let rows = first..first + out;
            let stored = if transposed { vec![input, outputs] } else { vec![outputs, input] };
            weight_view = Some(View { stored, transposed, rows: rows.clone() });
            bias_view = Some(View { stored: vec![outputs], transposed: false, rows }).filter(|_| outputs != out);
        }
        let weight = format!("{module}.weight");
        let mut weights = vec![self.view(role, &weight, &map.shape, map.shard_axis, weight_view)];
        if map.bias {
            let shard = map.shard_axis.filter(|axis| *axis == 0);
            weights.push(self.view(role, &format!("{module}.bias"), &[out], shard, bias_view));
        }
        self.op(Linear { bias: map.bias }, &[from], &[to], &weights);
    }
}

/// How a linear map lies in a tensor that is not simply `[out, in]`.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    /// Outputs of the whole stored tensor: those of all maps fused in it.
    pub(crate) outputs: usize,
    /// The map's first output among them.
    pub(crate) first: usize,
    /// Stored `[in, out]`.
    pub(crate) transposed: bool,
}

/// Shape of a linear map.
#[derive(Clone, Copy)]
pub(crate) struct Map {
    shape: [usize; 2],
    shard_axis: Option<usize>,
    bias: bool,
    stored: Option<Stored>,
}

impl Map {
    /// `[out, in]`, split by outputs in tensor parallelism (what feeds heads or hidden units).
    pub(crate) fn columns(out: usize, input: usize) -> Self {
        Self { shape: [out, input], shard_axis: Some(0), bias: false, stored: None }
    }

    /// `[out, in]`, split by inputs (what gathers heads or hidden units).
    pub(crate) fn gather(out: usize, input: usize) -> Self {
        Self { shape: [out, input], shard_axis: Some(1), bias: false, stored: None }
    }

    /// The same with a bias if `bias`.
    pub(crate) fn with_bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// The same, stored so.
    pub(crate) fn stored(self, stored: Stored) -> Self {
        Self { stored: Some(stored), ..self }
    }
}
