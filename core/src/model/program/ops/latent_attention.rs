//! `latent_attention`: attention of many query heads to one stored row a position, whose first elements are the value too
//! (DeepSeek-AI 2024, arXiv:2405.04434, with its maps absorbed into the queries and the output).
//!
//! Reads q `[T, heads * key_dim]` and, if `chosen`, a list `[T, n]`; writes out `[T, heads * value_dim]`. Weight: sinks
//! `[heads]`, if any: a score of no key. States: rows, which already hold this step's, and, with `entries`, compressed
//! rows, of which entry w stands at position (w + 1) * rate - 1 and is visible from there on.
//!
//! A query at p sees rows j <= p, with a window w only p - j < w, and all visible entries. A list names what it sees of the
//! last state instead of all: row positions, or entry numbers; negative numbers name nothing.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Attention to shared rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Elements of a row.
    pub key_dim: usize,
    /// Elements of a row that are the value, the first ones.
    pub value_dim: usize,
    /// Factor on q·k.
    pub scale: f32,
    /// Rows visible to a query, itself included, if limited.
    pub window: Option<usize>,
    /// Whether each query head has a sink.
    pub sinks: bool,
    /// Tokens an entry stands for, if there are entries.
    pub entries: Option<usize>,
    /// Whether a list says which are seen.
    pub chosen: bool,
    /// Most that a list names.
    pub listed: usize,
}

/// What a query sees: rows, and positions of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Positions of rows.
    pub rows: Vec<usize>,
    /// Positions at which entries stand.
    pub entries: Vec<usize>,
}

impl LatentAttention {
    /// First visible row for a query at `position`.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// What the query at `position` with this list sees.
    pub fn seen(&self, position: usize, list: &[f32]) -> Seen {
        let listed = || list.iter().filter(|n| **n >= 0.0).map(|n| *n as usize);
        let mut seen = Seen::default();
        match self.entries {
            None if self.chosen => seen.rows = listed().filter(|j| *j <= position).collect(),
            None => seen.rows = (self.first_visible(position)..=position).collect(),
            Some(rate) => {
                seen.rows = (self.first_visible(position)..=position).collect();
                let stands = |entry: usize| (entry + 1) * rate - 1;
                seen.entries = match self.chosen {
                    true => listed().map(stands).filter(|at| *at <= position).collect(),
                    false => (0..(position + 1) / rate).map(stands).collect(),
                };
            }
        }
        seen
    }

    /// How many a query at `position` sees at most.
    fn count(&self, position: usize) -> u64 {
        let rows = position + 1 - self.first_visible(position);
        let limit = |n: usize| if self.chosen { n.min(self.listed) } else { n };
        match self.entries {
            None => limit(rows) as u64,
            Some(rate) => (rows + limit((position + 1) / rate)) as u64,
        }
    }
}

impl Op for LatentAttention {
    fn name(&self) -> &'static str {
        "latent_attention"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let positions = |s: &super::super::SeqAxes| s.past as usize..(s.past + s.tokens) as usize;
        let pairs: u64 = axes.seqs.iter().flat_map(positions).map(|p| self.count(p)).sum();
        // Every row is read at least once; a list may leave most of them out, so the last query's share is the floor.
        let read = |s: &super::super::SeqAxes| match (self.chosen, positions(s).last()) {
            (_, None) => 0,
            (true, Some(last)) => self.count(last),
            (false, Some(last)) => {
                let rows = last + 1 - self.first_visible(s.past as usize);
                (rows + self.entries.map_or(0, |rate| (last + 1) / rate)) as u64
            }
        };
        NodeCost {
            weight_bytes: match self.sinks {
                true => sizes.weight_bytes(view.program, view.place, &view.tensor(0), 1),
                false => 0,
            },
            state_read_bytes: axes.seqs.iter().map(read).sum::<u64>() * sizes.kv_row_bytes(self.key_dim),
            flops: 2 * pairs * self.heads as u64 * (self.key_dim + self.value_dim) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (q, past) = (cx.read(0), cx.past);
        let (lists, width) = if self.chosen { (cx.read(1), cx.view.read_width(1)) } else { (Vec::new(), 0) };
        let sinks = if self.sinks { cx.vector(0)? } else { vec![f32::NEG_INFINITY; self.heads] };
        let rows = cx.state(0).keys.clone();
        let entries = if self.entries.is_some() { cx.state(1).keys.clone() } else { Vec::new() };
        let mut out = Vec::with_capacity(q.len() / self.key_dim * self.value_dim);
        for (t, q) in q.chunks(self.heads * self.key_dim).enumerate() {
            let list = if self.chosen { &lists[t * width..(t + 1) * width] } else { &[][..] };
            let seen = self.seen(past + t, list);
            let keys: Vec<&Vec<f32>> =
                seen.rows.iter().map(|j| &rows[*j]).chain(seen.entries.iter().map(|j| &entries[*j])).collect();
            for (q, sink) in q.chunks(self.key_dim).zip(&sinks) {
                let dot = |key: &[f32]| q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let scores: Vec<f64> = keys.iter().map(|key| dot(key) * f64::from(self.scale)).collect();
                let max = scores.iter().copied().fold(f64::from(*sink), f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total = weights.iter().sum::<f64>() + (f64::from(*sink) - max).exp();
                out.extend((0..self.value_dim).map(|d| {
                    let sum: f64 = keys.iter().zip(&weights).map(|(key, w)| w * f64::from(key[d])).sum();
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
