//! An MLP that every token goes through beside its routed experts, its output times a gate of the token's own.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use super::{Mlp, MlpValues};
use crate::model::program::ValueId;
use crate::model::program::ops::add_gated::AddGated;

/// The expert and its gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedExpert {
    /// The MLP.
    pub(crate) mlp: Mlp,
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

    /// Adds the gated expert to `to`: maps `module.gate_proj` and so on, the gate's map `module_gate`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: SharedValues,
        (from, to): (ValueId, ValueId),
    ) {
        block.linear("shared_gate", &format!("{module}_gate"), Map::columns(1, self.mlp.hidden), from, values.gate);
        self.mlp.put(block, module, values.mlp, (from, values.out));
        block.op(AddGated, &[to, values.out, values.gate], &[to], &[]);
    }
}
