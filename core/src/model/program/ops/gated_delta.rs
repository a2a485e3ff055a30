//! `gated_delta`: the gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), with a decay for each
//! head, or for each key channel (Kimi Team 2025, arXiv:2510.26692).
//!
//! Reads q, k `[T, key_heads * key_dim]`, v `[T, value_heads * value_dim]`, a `[T, value_heads]` or, by channel,
//! `[T, value_heads * key_dim]`, b `[T, value_heads]`; writes o `[T, value_heads * value_dim]`. Weights: A
//! `[value_heads]` and the bias of a. Each key head serves value_heads / key_heads value heads. State S
//! `[value_heads, key_dim, value_dim]`. For each token and value head, with unit = x / sqrt(sum x² + eps):
//!
//! q = unit(q) / sqrt(key_dim), k = unit(k), beta = sigmoid(b), g = -exp(A) * softplus(a + bias);
//! S = exp(g) S (rows by their channel); d = beta (v - Sᵀk); S = S + k dᵀ; o = Sᵀq.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StateDecl, StoredSizes};
use std::any::Any;

/// Added to the sum of squares of a query or key.
pub const UNIT_EPS: f32 = 1e-6;

/// How value heads stand to key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value heads of one key head are neighbours.
    Grouped,
    /// Value head h belongs to key head h mod key_heads (how GGUF files have it).
    Tiled,
}

/// The gated delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a q or k head.
    pub key_dim: usize,
    /// Elements of a v head.
    pub value_dim: usize,
    /// Whether a has an element for each key channel.
    pub by_channel: bool,
    /// Which key head a value head uses.
    pub order: HeadOrder,
    /// Whether the stored A is -exp(A) already (how GGUF files have it).
    pub a_is_rate: bool,
}

impl GatedDelta {
    /// Key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// The state such an op needs.
    pub fn state(&self) -> StateDecl {
        StateDecl::recurrent("delta", &[self.value_heads, self.key_dim, self.value_dim])
    }

    /// Decay rates from the stored A: negative numbers.
    pub fn rates(&self, stored: &[f32]) -> Vec<f32> {
        let rate = |a: &f32| if self.a_is_rate { *a } else { -a.exp() };
        stored.iter().map(rate).collect()
    }
}

/// ln(1 + e^x), linear where that is exact in f32.
pub fn softplus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}

impl Op for GatedDelta {
    fn name(&self) -> &'static str {
        "gated_delta"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let elements = (self.value_heads * self.key_dim * self.value_dim) as u64;
        let state = 4 * axes.seqs.len() as u64 * elements;
        let weights = 0..view.node.weights.len();
        NodeCost {
            weight_bytes: weights
                .map(|i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), u64::MAX))
                .sum(),
            state_read_bytes: state,
            state_write_bytes: state,
            // Decay, two products with the state and one update of it, each a multiply-add an element.
            flops: 7 * axes.tokens() * elements,
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let rates = self.rates(&cx.vector(0)?);
        let bias = cx.vector(1)?;
        let [q, k, v, a, b] = [0, 1, 2, 3, 4].map(|i| cx.read(i));
        let (dk, dv, heads) = (self.key_dim, self.value_dim, self.value_heads);
        let decays = if self.by_channel { dk } else { 1 };
        let mut state: Vec<f64> = cx.elements(0).iter().map(|x| f64::from(*x)).collect();
        let tokens = v.len() / (heads * dv);
        let mut out = vec![0.0; v.len()];
        for (t, h) in (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
            let key_at = (t * self.key_heads + self.key_head(h)) * dk;
            let q: Vec<f64> = unit(&q[key_at..key_at + dk]).map(|x| x / (dk as f64).sqrt()).collect();
            let k: Vec<f64> = unit(&k[key_at..key_at + dk]).collect();
            let v = &v[(t * heads + h) * dv..][..dv];
            let beta = 1.0 / (1.0 + (-f64::from(b[t * heads + h])).exp());
            let s = &mut state[h * dk * dv..(h + 1) * dk * dv];
            for (i, row) in s.chunks_mut(dv).enumerate() {
                let at = h * decays + if self.by_channel { i } else { 0 };
                let a = f64::from(a[t * heads * decays + at]) + f64::from(bias[at]);
                let decay = (f64::from(rates[h]) * softplus(a)).exp();
                row.iter_mut().for_each(|x| *x *= decay);
            }
            for j in 0..dv {
                let seen: f64 = (0..dk).map(|i| s[i * dv + j] * k[i]).sum();
                let d = beta * (f64::from(v[j]) - seen);
                (0..dk).for_each(|i| s[i * dv + j] += k[i] * d);
                out[(t * heads + h) * dv + j] = (0..dk).map(|i| s[i * dv + j] * q[i]).sum::<f64>() as f32;
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

fn unit(x: &[f32]) -> impl Iterator<Item = f64> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let scale = 1.0 / (squares + f64::from(UNIT_EPS)).sqrt();
    x.iter().map(move |x| f64::from(*x) * scale)
}
