//! The gated MLP: down(act(gate x) * up x).

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use crate::model::program::ValueId;
use crate::model::program::ops::gated_act::{Activation, GatedAct};

/// Sizes and choices of a gated MLP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mlp {
    /// Residual width.
    pub(crate) hidden: usize,
    /// Hidden units.
    pub(crate) intermediate: usize,
    /// On the gate.
    pub(crate) activation: Activation,
    /// Bias in all three maps.
    pub(crate) bias: bool,
}

/// What an MLP works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpValues {
    /// Gate, and then the hidden units.
    pub(crate) gate: ValueId,
    /// Up.
    pub(crate) up: ValueId,
}

impl MlpValues {
    /// Values for MLPs of one width.
    pub(crate) fn new(builder: &mut ProgramBuilder, intermediate: usize) -> Self {
        Self::named(builder, intermediate, ["gate", "up"])
    }

    /// Values under names of their own, for programs with several widths.
    pub(crate) fn named(builder: &mut ProgramBuilder, intermediate: usize, names: [&'static str; 2]) -> Self {
        let [gate, up] = names;
        Self { gate: builder.tokens(gate, intermediate), up: builder.tokens(up, intermediate) }
    }
}

impl Mlp {
    /// The whole MLP with maps named `module.gate_proj`, `module.up_proj`, `module.down_proj`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: MlpValues,
        (from, to): (ValueId, ValueId),
    ) {
        for (role, out) in [("gate_proj", values.gate), ("up_proj", values.up)] {
            let map = Map::columns(self.intermediate, self.hidden).with_bias(self.bias);
            block.linear(role, &format!("{module}.{role}"), map, from, out);
        }
        self.act_and_down(block, &format!("{module}.down_proj"), values, to);
    }

    /// The whole MLP with one stored map `module.gate_up_proj` whose outputs are those of gate and up in a row.
    pub(crate) fn put_fused(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: MlpValues,
        (from, to): (ValueId, ValueId),
    ) {
        for (role, out, first) in [("gate_proj", values.gate, 0), ("up_proj", values.up, self.intermediate)] {
            let stored = Stored { outputs: 2 * self.intermediate, first, transposed: false };
            let map = Map::columns(self.intermediate, self.hidden).with_bias(self.bias).stored(stored);
            block.linear(role, &format!("{module}.gate_up_proj"), map, from, out);
        }
        self.act_and_down(block, &format!("{module}.down_proj"), values, to);
    }

    /// The part after gate and up.
    pub(crate) fn act_and_down(&self, block: &mut BlockBuilder, down: &str, values: MlpValues, to: ValueId) {
        let act = GatedAct::plain(self.activation);
        block.op(act, &[values.gate, values.up], &[values.gate], &[]);
        let map = Map::gather(self.hidden, self.intermediate).with_bias(self.bias);
        block.linear("down_proj", down, map, values.gate, to);
    }
}
