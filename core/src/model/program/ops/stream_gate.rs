//! `stream_gate`: out's stream s = sigmoid(r(key_s · query_s / sqrt(n))) * value, with r(x) = sign(x) sqrt(max(|x|, 1e-6)):
//! how much of an n-gram's value each residual stream takes (Qwen team 2026, transformers `models/qwen4_exp`).
//!
//! Reads key, query `[T, streams * n]`, value `[T, n]`; writes out `[T, streams * n]`.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// A value for each stream, by how well keys and queries agree.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamGate;

impl StreamGate {
    /// The gate of a stream.
    pub fn gate(key: &[f32], query: &[f32]) -> f64 {
        let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let score = dot / (key.len() as f64).sqrt();
        let root = if score == 0.0 { 0.0 } else { score.signum() * score.abs().max(1e-6).sqrt() };
        1.0 / (1.0 + (-root).exp())
    }
}

impl Op for StreamGate {
    fn name(&self) -> &'static str {
        "stream_gate"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 3 * axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (key, query, value) = (cx.read(0), cx.read(1), cx.read(2));
        let (n, streams) = (cx.view.read_width(2), cx.view.write_width(0) / cx.view.read_width(2));
        let mut out = Vec::new();
        for (i, (key, query)) in key.chunks(n).zip(query.chunks(n)).enumerate() {
            let gate = Self::gate(key, query);
            out.extend(value[i / streams * n..][..n].iter().map(|v| (gate * f64::from(*v)) as f32));
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
