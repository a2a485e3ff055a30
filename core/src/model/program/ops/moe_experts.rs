//! `moe_experts`: out = sum over a token's experts e of weight_e * mlp_e(x).
//!
//! Reads x `[T, hidden]`, ids `[T, k]` and weights `[T, k]` (see `moe_route`); writes out `[T, hidden]`. Each expert is an MLP
//! of `intermediate` hidden units; its weights follow those of the expert before it: the maps of `maps`, each followed by
//! its bias if `biased`, then down `[hidden, intermediate]` and its bias. With `on_input` an expert's weight multiplies
//! what it reads instead of what it gives (llama4).

use super::gated_act::Activation;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// The maps into an expert's hidden units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertMaps {
    /// gate `[intermediate, hidden]` and up `[intermediate, hidden]`.
    GateAndUp,
    /// One `[2 * intermediate, hidden]`: gate, then up.
    Fused,
    /// One `[2 * intermediate, hidden]`: gate and up in turn.
    Interleaved,
    /// up `[intermediate, hidden]` alone.
    Up,
}

/// What happens to gate and up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertAct {
    /// act(gate) * up; without a gate act(up).
    Plain(Activation),
    /// act(min(gate, limit)) * clamp(up, -limit, limit).
    Clamped {
        /// The non-linearity.
        activation: Activation,
        /// The bound.
        limit: f32,
    },
    /// (clamp(up, -limit, limit) + 1) * g sigmoid(alpha g) with g = min(gate, limit).
    ClampedPlusOne {
        /// Steepness.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

impl ExpertAct {
    /// A hidden unit from its gate and up; a unit without a gate has its up in both.
    pub fn eval(self, gated: bool, gate: f64, up: f64) -> f64 {
        let clamp = |x: f64, limit: f32| x.clamp(-f64::from(limit), f64::from(limit));
        match self {
            Self::Plain(activation) if gated => activation.eval(gate) * up,
            Self::Plain(activation) => activation.eval(up),
            Self::Clamped { activation, limit } => activation.eval(gate.min(f64::from(limit))) * clamp(up, limit),
            Self::ClampedPlusOne { alpha, limit } => {
                let g = gate.min(f64::from(limit));
                (clamp(up, limit) + 1.0) * g / (1.0 + (-f64::from(alpha) * g).exp())
            }
        }
    }
}

/// Routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeExperts {
    /// Experts there are.
    pub experts: usize,
    /// Experts a token gets.
    pub top_k: usize,
    /// Hidden units of an expert.
    pub intermediate: usize,
    /// The maps into them.
    pub maps: ExpertMaps,
    /// What happens to gate and up.
    pub act: ExpertAct,
    /// Whether maps have biases.
    pub biased: bool,
    /// Whether an expert's weight multiplies what it reads.
    pub on_input: bool,
}

/// An expert's weights by their place in the op's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertWeights {
    /// Maps into the hidden units, each with its bias.
    pub maps: Vec<(usize, Option<usize>)>,
    /// The map out of them, with its bias.
    pub down: (usize, Option<usize>),
}

impl MoeExperts {
    /// Where an expert's weights stand in the op's list.
    pub fn weights_of(&self, expert: usize) -> ExpertWeights {
        let step = if self.biased { 2 } else { 1 };
        let maps = if self.maps == ExpertMaps::GateAndUp { 2 } else { 1 };
        let first = expert * (maps + 1) * step;
        let at = |i: usize| (first + i * step, self.biased.then_some(first + i * step + 1));
        ExpertWeights { maps: (0..maps).map(at).collect(), down: at(maps) }
    }

    /// Outputs of all maps together.
    pub fn units(&self) -> usize {
        if self.maps == ExpertMaps::Up { self.intermediate } else { 2 * self.intermediate }
    }

    /// Gate and up of hidden unit `i`, given the outputs of all maps one after the other.
    pub fn unit(&self, outputs: &[f32], i: usize) -> f64 {
        let (gate, up) = match self.maps {
            ExpertMaps::GateAndUp | ExpertMaps::Fused => (outputs[i], outputs[self.intermediate + i]),
            ExpertMaps::Interleaved => (outputs[2 * i], outputs[2 * i + 1]),
            ExpertMaps::Up => (outputs[i], outputs[i]),
        };
        self.act.eval(self.maps != ExpertMaps::Up, f64::from(gate), f64::from(up))
    }
}

impl Op for MoeExperts {
    fn name(&self) -> &'static str {
        "moe_experts"
    }

    /// The least: all tokens of a pass have the same experts. How many they really hit is not known beforehand.
    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        if axes.tokens() == 0 {
            return NodeCost::default();
        }
        let ExpertWeights { maps, down } = self.weights_of(0);
        let bytes = |i: usize| {
            let rows = view.weight_shape(i)[0] as u64;
            sizes.weight_bytes(view.program, view.place, &view.tensor(i), rows)
        };
        let one: u64 = maps.iter().chain([&down]).map(|(map, bias)| bytes(*map) + bias.map_or(0, bytes)).sum();
        let products = (self.units() + self.intermediate) * view.write_width(0);
        NodeCost {
            weight_bytes: one * self.top_k as u64,
            flops: 2 * axes.tokens() * (self.top_k * products) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (x, ids, weights) = (cx.read(0), cx.read(1), cx.read(2));
        let hidden = cx.view.write_width(0);
        let mut out = vec![0.0f64; x.len()];
        for (at, (expert, weight)) in ids.iter().zip(&weights).enumerate() {
            let t = at / self.top_k;
            let own = self.weights_of(*expert as usize);
            let (before, after) = if self.on_input { (*weight, 1.0) } else { (1.0, *weight) };
            let input: Vec<f32> = x[t * hidden..(t + 1) * hidden].iter().map(|v| v * before).collect();
            let mut outputs = Vec::new();
            for (map, bias) in own.maps {
                outputs.extend(product(cx, map, bias, &input)?);
            }
            let units: Vec<f32> = (0..self.intermediate).map(|i| self.unit(&outputs, i) as f32).collect();
            let given = product(cx, own.down.0, own.down.1, &units)?;
            let sums = out[t * hidden..(t + 1) * hidden].iter_mut().zip(given);
            sums.for_each(|(o, v)| *o += f64::from(after) * f64::from(v));
        }
        cx.write(0, out.iter().map(|v| *v as f32).collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// x times a map, and its bias.
fn product(cx: &PlainCx<'_>, map: usize, bias: Option<usize>, x: &[f32]) -> Result<Vec<f32>, PlainError> {
    let rows = cx.weight(map)?;
    let bias = bias.map_or(Ok(vec![0.0; rows.len()]), |bias| cx.vector(bias))?;
    let dot = |row: &[f32]| row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    Ok(rows.iter().zip(&bias).map(|(row, b)| (dot(row) + f64::from(*b)) as f32).collect())
}
