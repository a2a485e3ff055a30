//! An MLP that every token goes through beside its routed experts, by option times a gate of the token's own.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use super::{Mlp, MlpValues};
use crate::model::program::ValueId;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::add_gated::AddGated;

/// The expert and its gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedExpert {
    /// The MLP.
    pub(crate) mlp: Mlp,
    /// Where its maps are.
    pub(crate) module: &'static str,
    /// The map to the gate, if it has one.
    pub(crate) gate: Option<&'static str>,
}

/// What it works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedValues {
    mlp: MlpValues,
    gate: ValueId,
    out: ValueId,
}

impl SharedExpert {
    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> SharedValues {
        SharedValues {
            mlp: MlpValues::named(builder, self.mlp.intermediate, ["shared_gate", "shared_up"]),
            gate: builder.tokens("shared_expert_gate", 1),
            out: builder.tokens("shared_expert", self.mlp.hidden),
        }
    }

    /// Adds what the expert makes of `from` to `to`.
    pub(crate) fn join(&self, block: &mut BlockBuilder, values: SharedValues, (from, to): (ValueId, ValueId)) {
        let SharedValues { mlp, gate, out } = values;
        self.mlp.put(block, self.module, mlp, (from, out));
        match self.gate {
            Some(name) => {
                block.linear("shared_gate", name, Map::columns(1, self.mlp.hidden), from, gate);
                block.op(AddGated, &[to, out, gate], &[to], &[]);
            }
            None => block.op(Add::SUM, &[to, out], &[to], &[]),
        }
    }
}
