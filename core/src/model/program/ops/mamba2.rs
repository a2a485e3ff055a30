//! `mamba2`: the state-space recurrence of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).
//!
//! Reads x `[T, heads * head_dim]`, B, C `[T, groups * state_dim]`, dt `[T, heads]`; writes y `[T, heads * head_dim]`.
//! Weights: A, the bias of dt, D, each `[heads]`. Head h uses the B and C of group
//! h / (heads / groups). State h `[heads, head_dim, state_dim]`. For each token and head:
//!
//! dt = clamp(softplus(dt + bias), dt_min, dt_max); h = exp(-exp(A) dt) h + dt x Bᵀ; y = h C + D x.

use super::gated_delta::softplus;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StateDecl, StoredSizes};
use std::any::Any;

/// The Mamba-2 recurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C; divides `heads`.
    pub groups: usize,
    /// State elements an element of a head.
    pub state_dim: usize,
    /// Smallest step.
    pub dt_min: f32,
    /// Largest step.
    pub dt_max: f32,
    /// Whether the stored A is -exp(A) already (how GGUF files have it).
    pub a_is_rate: bool,
}

impl Mamba2 {
    /// Elements of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of B, and of C.
    pub fn shared(&self) -> usize {
        self.groups * self.state_dim
    }

    /// The state such an op needs.
    pub fn state(&self) -> StateDecl {
        StateDecl::recurrent("ssm", &[self.heads, self.head_dim, self.state_dim])
    }

    /// Decay rates from the stored A: negative numbers.
    pub fn rates(&self, stored: &[f32]) -> Vec<f32> {
        let rate = |a: &f32| if self.a_is_rate { *a } else { -a.exp() };
        stored.iter().map(rate).collect()
    }
}

impl Op for Mamba2 {
    fn name(&self) -> &'static str {
        "mamba2"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let elements = (self.inner() * self.state_dim) as u64;
        let state = 4 * axes.seqs.len() as u64 * elements;
        let weights = 0..view.node.weights.len();
        NodeCost {
            weight_bytes: weights
                .map(|i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), u64::MAX))
                .sum(),
            state_read_bytes: state,
            state_write_bytes: state,
            // Decay, update and product, an element.
            flops: 5 * axes.tokens() * elements,
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let rates = self.rates(&cx.vector(0)?);
        let (bias, skip) = (cx.vector(1)?, cx.vector(2)?);
        let [x, b, c, dt] = [0, 1, 2, 3].map(|i| cx.read(i));
        let (p, n) = (self.head_dim, self.state_dim);
        let mut state: Vec<f64> = cx.elements(0).iter().map(|x| f64::from(*x)).collect();
        let mut out = Vec::new();
        for (t, dt) in dt.chunks(self.heads).enumerate() {
            let (x, b, c) = (&x[t * self.inner()..], &b[t * self.shared()..], &c[t * self.shared()..]);
            for h in 0..self.heads {
                let group = h / (self.heads / self.groups) * n;
                let step = softplus(f64::from(dt[h]) + f64::from(bias[h]));
                let step = step.clamp(f64::from(self.dt_min), f64::from(self.dt_max));
                let decay = (f64::from(rates[h]) * step).exp();
                for i in 0..p {
                    let x = f64::from(x[h * p + i]);
                    let s = &mut state[(h * p + i) * n..][..n];
                    let mut y = f64::from(skip[h]) * x;
                    for (j, s) in s.iter_mut().enumerate() {
                        *s = decay * *s + step * x * f64::from(b[group + j]);
                        y += *s * f64::from(c[group + j]);
                    }
                    out.push(y as f32);
                }
            }
        }
        cx.elements(0).iter_mut().zip(&state).for_each(|(x, s)| *x = *s as f32);
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
