//! Routed experts: a router's logits, the choice, and the experts' MLPs.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use crate::model::program::ops::moe_experts::{ExpertMaps, MoeExperts};
use crate::model::program::ops::moe_route::MoeRoute;
use crate::model::program::{ValueId, View, WeightId};

/// Where experts' weights are stored, below the block's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertTensors {
    /// A tensor for each map of each expert: `module.{expert}.name.weight` by the names of gate, up and down. Without a
    /// gate the first name is not used.
    Each {
        /// `mlp.experts`.
        module: &'static str,
        /// Names of gate, up and down.
        names: [&'static str; 3],
    },
    /// One tensor of all experts for gate and up, and one for down: `[experts, out, in]`.
    Stacked {
        /// Gate and up.
        gate_up: &'static str,
        /// Down.
        down: &'static str,
        /// Stored `[experts, in, out]`.
        transposed: bool,
    },
}

/// gate, up and down as most families call them.
pub(crate) const GATE_UP_DOWN: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Experts of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Moe {
    /// Width of what experts read and give.
    pub(crate) hidden: usize,
    /// The choice.
    pub(crate) route: MoeRoute,
    /// The experts.
    pub(crate) experts: MoeExperts,
    /// Their weights.
    pub(crate) tensors: ExpertTensors,
    /// The router's map.
    pub(crate) router: &'static str,
    /// Whether the router's map has a bias.
    pub(crate) router_bias: bool,
    /// The tensor of the choice's bias, if there is one.
    pub(crate) choice_bias: Option<&'static str>,
}

/// What the choice is kept in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeValues {
    pub(crate) logits: ValueId,
    pub(crate) ids: ValueId,
    pub(crate) weights: ValueId,
}

impl Moe {
    /// Values of these sizes.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> MoeValues {
        MoeValues {
            logits: builder.tokens("router_logits", self.experts.experts),
            ids: builder.tokens("expert_ids", self.experts.top_k),
            weights: builder.tokens("expert_weights", self.experts.top_k),
        }
    }

    /// Router, choice and experts.
    pub(crate) fn put(&self, block: &mut BlockBuilder, values: MoeValues, (from, to): (ValueId, ValueId)) {
        self.choose(block, values, from);
        self.run(block, values, (from, to));
    }

    /// Router and choice, by what the router reads.
    pub(crate) fn choose(&self, block: &mut BlockBuilder, values: MoeValues, from: ValueId) {
        let map = Map::columns(self.experts.experts, self.hidden).with_bias(self.router_bias);
        block.linear("router", self.router, map, from, values.logits);
        let bias = self.choice_bias.map(|name| block.weight("choice_bias", name, &[self.experts.experts], None));
        let weights: Vec<WeightId> = bias.into_iter().collect();
        block.op(self.route.clone(), &[values.logits], &[values.ids, values.weights], &weights);
    }

    /// The chosen experts.
    pub(crate) fn run(&self, block: &mut BlockBuilder, values: MoeValues, (from, to): (ValueId, ValueId)) {
        let weights: Vec<WeightId> = (0..self.experts.experts).flat_map(|e| self.weights(block, e)).collect();
        block.op(self.experts.clone(), &[from, values.ids, values.weights], &[to], &weights);
    }

    /// The weights of one expert in the op's order.
    fn weights(&self, block: &mut BlockBuilder, expert: usize) -> Vec<WeightId> {
        let (hidden, width, units) = (self.hidden, self.experts.intermediate, self.experts.units());
        match self.tensors {
            ExpertTensors::Each { module, names } => {
                let first = usize::from(self.experts.maps == ExpertMaps::Up);
                let mut one = |name: &str, shape: &[usize], axis| {
                    block.weight("expert", &format!("{module}.{expert}.{name}.weight"), shape, Some(axis))
                };
                let mut all: Vec<WeightId> = names[first..2].iter().map(|n| one(n, &[width, hidden], 0)).collect();
                all.push(one(names[2], &[hidden, width], 1));
                all
            }
            ExpertTensors::Stacked { gate_up, down, transposed } => {
                let count = self.experts.experts;
                let mut one = |name: &str, out: usize, input: usize, axis| {
                    let stored = if transposed { vec![count, input, out] } else { vec![count, out, input] };
                    let view = View { stored, transposed, rows: expert * out..(expert + 1) * out };
                    block.view("expert", name, &[out, input], Some(axis), Some(view))
                };
                vec![one(gate_up, units, hidden, 0), one(down, hidden, width, 1)]
            }
        }
    }
}
