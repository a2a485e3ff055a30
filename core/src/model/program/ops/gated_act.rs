//! `gated_act`: out = act(gate) * up, with a limit act(min(gate, limit)) * clamp(up, -limit, limit): the middle of a gated MLP (Shazeer 2020, arXiv:2002.05202).
//!
//! Reads gate, up `[T, n]`; writes out `[T, n]` (may be gate).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// The non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415).
    GeluTanh,
    /// 1 / (1 + e^-x): a gate on attention's output.
    Sigmoid,
    /// The square of max(x, 0) (So et al. 2021, arXiv:2109.08668).
    Relu2,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// The activation named so in a config (`hidden_act`).
    pub fn from_config(name: &str) -> Option<Self> {
        match name {
            "sigmoid" => Some(Self::Sigmoid),
            "silu" | "swish" => Some(Self::Silu),
            "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_new" => Some(Self::GeluTanh),
            "relu2" => Some(Self::Relu2),
            _ => None,
        }
    }

    /// Its value at x.
    pub fn eval(self, x: f64) -> f64 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::Relu2 => x.max(0.0).powi(2),
            Self::Tanh => x.tanh(),
        }
    }
}

/// Gated activation.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedAct {
    /// The non-linearity on the gate.
    pub activation: Activation,
    /// Bound of gate and up, if any.
    pub limit: Option<f32>,
}

impl GatedAct {
    /// Without a bound.
    pub fn plain(activation: Activation) -> Self {
        Self { activation, limit: None }
    }

    /// Gate and up within the bound.
    pub fn bound(&self, gate: f32, up: f32) -> (f32, f32) {
        match self.limit {
            Some(limit) => (gate.min(limit), up.clamp(-limit, limit)),
            None => (gate, up),
        }
    }
}

impl Op for GatedAct {
    fn name(&self) -> &'static str {
        "gated_act"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 8 * axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (gate, up) = (cx.read(0), cx.read(1));
        let act = |(g, u): (&f32, &f32)| {
            let (g, u) = self.bound(*g, *u);
            (self.activation.eval(f64::from(g)) * f64::from(u)) as f32
        };
        cx.write(0, gate.iter().zip(&up).map(act).collect());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
