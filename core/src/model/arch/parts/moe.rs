//! Routed experts: a router's logits, the choice, and the experts' MLPs.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use super::super::{ArchError, Source};
use crate::json::Config;
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::moe_experts::{ExpertAct, ExpertMaps, MoeExperts};
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
    /// One tensor of all experts for each map, `[experts, out, in]`, by the names of gate, up and down (how GGUF files have
    /// them).
    Apart([&'static str; 3]),
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
    /// The tensor of the choice's bias, if there is one, and whether it is stored as a matrix of one row.
    pub(crate) choice_bias: Option<(&'static str, bool)>,
}

impl Moe {
    /// Experts that are MLPs of three maps each, chosen by `route`.
    pub(crate) fn of_mlps(
        (hidden, intermediate, activation): (usize, usize, Activation),
        experts: usize,
        route: MoeRoute,
        (module, names): (&'static str, [&'static str; 3]),
        router: &'static str,
    ) -> Self {
        let experts = MoeExperts {
            experts,
            top_k: route.top_k,
            intermediate,
            maps: ExpertMaps::GateAndUp,
            act: ExpertAct::Plain(activation),
            biased: false,
            on_input: false,
        };
        let tensors = ExpertTensors::Each { module, names };
        Self { hidden, route, experts, tensors, router, router_bias: false, choice_bias: None }
    }
}

/// Maps of all experts apart, as GGUF files have them.
const APART: [&str; 3] = ["mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"];

impl Moe {
    /// The same, or with all experts' maps in one tensor each if `layer` of the checkpoint has them so.
    pub(crate) fn found_in(self, source: &Source<'_>, layer: usize) -> Self {
        if (source.tensor)(&format!("model.layers.{layer}.{}", APART[0])).is_none() {
            return self;
        }
        let maps = if self.experts.maps == ExpertMaps::Up { ExpertMaps::Up } else { ExpertMaps::GateAndUp };
        let experts = MoeExperts { maps, ..self.experts };
        Self { experts, tensors: ExpertTensors::Apart(APART), ..self }
    }
}

/// How many experts there are and how many a token gets, by these keys.
///
/// # Errors
/// Numbers that do not fit each other.
pub(crate) fn expert_counts(config: &Config, experts: &str, top_k: (&str, usize)) -> Result<(usize, usize), ArchError> {
    let (count, chosen) = (config.positive(experts)?, config.usize_or(top_k.0, top_k.1)?);
    if chosen == 0 || chosen > count {
        return Err(ArchError::Value { key: top_k.0.into(), why: format!("{chosen} of {count} experts") });
    }
    Ok((count, chosen))
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
        let count = self.experts.experts;
        let bias = self.choice_bias.map(|(name, stored_rows)| {
            // Some files keep it as a matrix of one row.
            let view = View { stored: vec![1, count], transposed: false, rows: 0..1 };
            block.view("choice_bias", name, &[count], None, Some(view).filter(|_| stored_rows))
        });
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
            ExpertTensors::Apart(names) => {
                let first = usize::from(self.experts.maps == ExpertMaps::Up);
                let mut one = |name: &str, [out, input]: [usize; 2], axis| {
                    let stored = vec![self.experts.experts, out, input];
                    let view = View { stored, transposed: false, rows: expert * out..(expert + 1) * out };
                    block.view("expert", name, &[out, input], Some(axis), Some(view))
                };
                let mut maps: Vec<WeightId> = names[first..2].iter().map(|n| one(n, [width, hidden], 0)).collect();
                maps.push(one(names[2], [hidden, width], 1));
                if !self.experts.biased {
                    return maps;
                }
                let mut bias = |name: &str, out: usize| {
                    let stored = vec![self.experts.experts, out];
                    let view = View { stored, transposed: false, rows: expert..expert + 1 };
                    block.view("expert_bias", &format!("{name}_bias"), &[out], None, Some(view))
                };
                let mut biases: Vec<WeightId> = names[first..2].iter().map(|name| bias(name, width)).collect();
                biases.push(bias(names[2], hidden));
                maps.into_iter().zip(biases).flat_map(|(map, bias)| [map, bias]).collect()
            }
            ExpertTensors::Stacked { gate_up, down, transposed } => {
                let count = self.experts.experts;
                let mut one = |name: &str, out: usize, input: usize, axis| {
                    let stored = if transposed { vec![count, input, out] } else { vec![count, out, input] };
                    let view = View { stored, transposed, rows: expert * out..(expert + 1) * out };
                    block.view("expert", name, &[out, input], Some(axis), Some(view))
                };
                let maps = [one(gate_up, units, hidden, 0), one(down, hidden, width, 1)];
                if !self.experts.biased {
                    return maps.to_vec();
                }
                let mut bias = |name: &str, out: usize| {
                    let view = View { stored: vec![count, out], transposed: false, rows: expert..expert + 1 };
                    block.view("expert_bias", &format!("{name}_bias"), &[out], None, Some(view))
                };
                vec![maps[0], bias(gate_up, units), maps[1], bias(down, hidden)]
            }
        }
    }
}
