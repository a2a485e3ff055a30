//! `attention`: softmax(q·kᵀ * scale) · v over the state, causal, grouped-query (Ainslie et al. 2023, arXiv:2305.13245).
//!
//! Reads q `[T, heads * key_dim]`; writes out `[T, heads * value_dim]`. State: kv, which already holds this step's
//! positions. Weight: sinks `[heads]`, if any (Xiao et al. 2023, arXiv:2309.17453). Query head h uses key/value head h / (heads / kv_heads). The query at position p sees keys j <= p, and
//! with a window w only p - j < w, with chunks of c only j / c = p / c. With a softcap c scores are c * tanh(score / c) before the mask (gemma2).

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Causal attention over the KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key row of one head.
    pub key_dim: usize,
    /// Elements of a value row of one head.
    pub value_dim: usize,
    /// Factor on q·k.
    pub scale: f32,
    /// Keys visible to a query, itself included, if limited.
    pub window: Option<usize>,
    /// Score cap, if any.
    pub softcap: Option<f32>,
    /// Tokens of a chunk, if a query sees only keys of its own chunk.
    pub chunk: Option<usize>,
    /// Whether each query head has a sink: a score of no key, which takes its share of the softmax.
    pub sinks: bool,
}

impl Attention {
    /// First visible position for a query at `position`.
    pub fn first_visible(&self, position: usize) -> usize {
        let window = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let chunk = self.chunk.map_or(0, |c| position - position % c);
        window.max(chunk)
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let row = sizes.kv_row_bytes(self.key_dim) + sizes.kv_row_bytes(self.value_dim);
        NodeCost {
            weight_bytes: match self.sinks {
                true => sizes.weight_bytes(view.program, view.place, &view.tensor(0), 1),
                false => 0,
            },
            state_read_bytes: axes.positions_read(|p| self.first_visible(p)) * self.kv_heads as u64 * row,
            flops: 2
                * axes.pairs(|p| self.first_visible(p))
                * self.heads as u64
                * (self.key_dim + self.value_dim) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let q = cx.read(0);
        let sinks = if self.sinks { cx.vector(0)? } else { vec![f32::NEG_INFINITY; self.heads] };
        let past = cx.past;
        let group = self.heads / self.kv_heads;
        let mut out = Vec::new();
        let state = cx.state(0);
        for (t, q) in q.chunks(self.heads * self.key_dim).enumerate() {
            let position = past + t;
            for (h, q) in q.chunks(self.key_dim).enumerate() {
                let kv = h / group;
                let visible = self.first_visible(position)..=position;
                let scores: Vec<f64> = visible.clone().map(|j| self.score(q, &state.keys[j], kv)).collect();
                let sink = f64::from(sinks[h]);
                let max = scores.iter().copied().fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + (sink - max).exp();
                out.extend((0..self.value_dim).map(|d| {
                    let at = kv * self.value_dim + d;
                    let sum: f64 = visible.clone().zip(&weights).map(|(j, w)| w * f64::from(state.values[j][at])).sum();
                    (sum / total) as f32
                }));
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Attention {
    fn score(&self, q: &[f32], keys: &[f32], kv: usize) -> f64 {
        let key = &keys[kv * self.key_dim..(kv + 1) * self.key_dim];
        let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let score = dot * f64::from(self.scale);
        match self.softcap {
            Some(cap) => f64::from(cap) * (score / f64::from(cap)).tanh(),
            None => score,
        }
    }
}
