//! `index_topk`: the keys an indexer finds best for each query (DeepSeek-AI 2025, DeepSeek-V3.2-Exp).
//!
//! Reads q `[T, heads * dim]` and head weights `[T, heads]`; writes a list `[T, top_k]`, in ascending order, -1 where there is
//! nothing left to name. State: keys of one head, which already hold this step's. Key j stands at position
//! (j + 1) * every - 1 and is visible from there on. Its score is the sum over heads of weight * max(q·key, 0) * scale;
//! the lower number wins among equals.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Choice of keys.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexTopK {
    /// Heads of the indexer.
    pub heads: usize,
    /// Elements a head.
    pub dim: usize,
    /// Keys chosen.
    pub top_k: usize,
    /// Positions a key stands for.
    pub every: usize,
    /// Factor on scores.
    pub scale: f32,
}

impl IndexTopK {
    /// Keys visible at `position`.
    pub fn visible(&self, position: usize) -> usize {
        (position + 1) / self.every
    }

    /// The list for these scores.
    pub fn choose(&self, scores: &[f32], list: &mut [f32]) {
        list.fill(-1.0);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        if order.len() > list.len() {
            let by_score = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
            order.select_nth_unstable_by(list.len() - 1, by_score);
            order.truncate(list.len());
            order.sort_unstable();
        }
        list.iter_mut().zip(order).for_each(|(to, key)| *to = key as f32);
    }
}

impl Op for IndexTopK {
    fn name(&self) -> &'static str {
        "index_topk"
    }

    fn cost(&self, _: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let seen = |s: &super::super::SeqAxes| -> u64 {
            (s.past..s.past + s.tokens).map(|p| self.visible(p as usize) as u64).sum()
        };
        let read = |s: &super::super::SeqAxes| u64::from(s.past + s.tokens) / self.every as u64;
        NodeCost {
            state_read_bytes: axes.seqs.iter().map(read).sum::<u64>() * sizes.kv_row_bytes(self.dim),
            flops: 2 * axes.seqs.iter().map(seen).sum::<u64>() * (self.heads * self.dim) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (q, weights, past) = (cx.read(0), cx.read(1), cx.past);
        let keys = cx.state(0).keys.clone();
        let mut out = vec![-1.0; weights.len() / self.heads * self.top_k];
        let tokens = q.chunks(self.heads * self.dim).zip(weights.chunks(self.heads));
        for (t, ((q, weights), list)) in tokens.zip(out.chunks_mut(self.top_k)).enumerate() {
            let score = |key: usize| {
                let key = &keys[(key + 1) * self.every - 1];
                let head = |(q, w): (&[f32], &f32)| {
                    let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    f64::from(*w) * dot.max(0.0) * f64::from(self.scale)
                };
                q.chunks(self.dim).zip(weights).map(head).sum::<f64>() as f32
            };
            let scores: Vec<f32> = (0..self.visible(past + t)).map(score).collect();
            self.choose(&scores, list);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
