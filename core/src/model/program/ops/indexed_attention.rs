//! `indexed_attention`: attention to the blocks of keys that an indexer finds best, and to the tail behind the last whole
//! block (Qwen team 2026, transformers `models/qwen4_exp`).
//!
//! Reads q `[T, heads * dim]`, index queries `[T, index_heads * index_dim]`, both normed and rotated; writes out
//! `[T, heads * dim]`. Weight: the norm of block keys `[index_dim]`. States: kv, and index (raw index keys, no values),
//! which hold this step's positions. Keys 0 .. p of the query at position p are cut into blocks of `ratio`. A whole
//! block's key is the mean of its raw keys, normed (weight + `offset`), rotated by the block's first position; its score is
//! the sum over index heads of max(q · key, 0). The best `kept` whole blocks are seen, the earlier first among equals,
//! and what follows the last whole block.

use super::attention::Attention;
use super::rope::Rope;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Attention to chosen blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedAttention {
    /// Attention among what is seen; without a window.
    pub attention: Attention,
    /// Heads of the indexer.
    pub index_heads: usize,
    /// Elements of an index head.
    pub index_dim: usize,
    /// Tokens of a block.
    pub ratio: usize,
    /// Whole blocks seen.
    pub kept: usize,
    /// Epsilon of the block keys' norm.
    pub eps: f32,
    /// Added to its weight.
    pub offset: f32,
    /// Rotation of block keys.
    pub rope: Rope,
}

impl IndexedAttention {
    /// A block's key from the raw keys of its positions.
    pub fn block_key<'a>(&self, raw: impl Iterator<Item = &'a [f32]>, block: usize, weight: &[f32]) -> Vec<f64> {
        let mut key = vec![0.0f64; self.index_dim];
        raw.for_each(|row| key.iter_mut().zip(row).for_each(|(k, r)| *k += f64::from(*r) / self.ratio as f64));
        let mean = key.iter().map(|k| k * k).sum::<f64>() / self.index_dim as f64;
        let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
        key.iter_mut().zip(weight).for_each(|(k, w)| *k *= scale * f64::from(w + self.offset));
        for (i, freq) in self.rope.inv_freq.iter().enumerate() {
            let (sin, cos) = ((block * self.ratio) as f64 * f64::from(*freq)).sin_cos();
            let magnitude = f64::from(self.rope.magnitude);
            let (x, y) = self.rope.pair(i);
            let (a, b) = (key[x], key[y]);
            (key[x], key[y]) = ((a * cos - b * sin) * magnitude, (b * cos + a * sin) * magnitude);
        }
        key
    }

    /// Positions that the query at `position` sees, ascending.
    pub fn seen(&self, position: usize, query: &[f32], block_keys: &[Vec<f64>]) -> Vec<usize> {
        let whole = (position + 1) / self.ratio;
        let score = |key: &Vec<f64>| -> f64 {
            let heads = query.chunks(self.index_dim);
            heads.map(|q| q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>().max(0.0)).sum()
        };
        let mut blocks: Vec<usize> = (0..whole).collect();
        if whole > self.kept {
            let scores: Vec<f64> = block_keys[..whole].iter().map(score).collect();
            blocks.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            blocks.truncate(self.kept);
            blocks.sort_unstable();
        }
        let chosen = blocks.into_iter().flat_map(|block| block * self.ratio..(block + 1) * self.ratio);
        chosen.chain(whole * self.ratio..position + 1).collect()
    }
}

impl Op for IndexedAttention {
    fn name(&self) -> &'static str {
        "indexed_attention"
    }

    fn cost(&self, _: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let Attention { heads, kv_heads, key_dim, value_dim, .. } = self.attention;
        let seen = (self.kept + 1) * self.ratio - 1;
        let row = sizes.kv_row_bytes(key_dim) + sizes.kv_row_bytes(value_dim);
        // At least what one query sees is read; all index keys are.
        let positions: u64 =
            axes.seqs.iter().map(|s| u64::from(s.past + s.tokens).min(seen as u64) * kv_heads as u64).sum();
        NodeCost {
            state_read_bytes: positions * row + axes.positions_read(|_| 0) * sizes.kv_row_bytes(self.index_dim),
            flops: 2 * axes.pairs(|p| (p + 1).saturating_sub(seen)) * heads as u64 * (key_dim + value_dim) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let weight = cx.vector(0)?;
        let (q, index) = (cx.read(0), cx.read(1));
        let past = cx.past;
        let Attention { heads, kv_heads, key_dim, value_dim, scale, .. } = self.attention;
        let raw = cx.state(1).keys.clone();
        let block_key = |b: usize| {
            let rows = raw[b * self.ratio..(b + 1) * self.ratio].iter().map(Vec::as_slice);
            self.block_key(rows, b, &weight)
        };
        let block_keys: Vec<Vec<f64>> = (0..raw.len() / self.ratio).map(block_key).collect();
        let state = cx.state(0);
        let mut out = Vec::new();
        for (t, q) in q.chunks(heads * key_dim).enumerate() {
            let query = &index[t * self.index_heads * self.index_dim..][..self.index_heads * self.index_dim];
            let seen = self.seen(past + t, query, &block_keys);
            for (h, q) in q.chunks(key_dim).enumerate() {
                let kv = h / (heads / kv_heads);
                let score = |j: &usize| -> f64 {
                    let key = &state.keys[*j][kv * key_dim..(kv + 1) * key_dim];
                    q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * f64::from(scale)
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..value_dim).map(|d| {
                    let at = kv * value_dim + d;
                    let sum: f64 = seen.iter().zip(&weights).map(|(j, w)| w * f64::from(state.values[*j][at])).sum();
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
