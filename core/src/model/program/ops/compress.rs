//! `compress`: a window of tokens as one row, mixed channel by channel (DeepSeek-AI 2026, DeepSeek-V4).
//!
//! Reads nothing but its state; writes entries `[T, dim]`. Weight: a score for each place in a window, `[rate, c * dim]`.
//! State: for each position the row to be mixed and its scores, `c * dim` elements each, this step's included. The token
//! that closes window w, at position (w + 1) * rate - 1, gets the entry of w: the sum over the window of
//! softmax(score + place) * row, a softmax for each channel. Other tokens get zeros. With `overlap` c is 2, else 1: the
//! first halves of the window before and the second halves of the window itself go into one softmax.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Windows as rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    /// Tokens of a window.
    pub rate: usize,
    /// Elements of an entry.
    pub dim: usize,
    /// Whether the window before takes part.
    pub overlap: bool,
}

impl Compress {
    /// Elements of a row to be mixed, and of its scores.
    pub fn width(&self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    /// Positions an entry is made of.
    pub fn reach(&self) -> usize {
        if self.overlap { 2 * self.rate } else { self.rate }
    }

    /// The entry of the window that ends at `position`, if one does: `row` gives a position's row and scores.
    pub fn entry<'a>(
        &self,
        position: usize,
        places: &[f32],
        row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
        out: &mut [f32],
    ) {
        out.fill(0.0);
        if !(position + 1).is_multiple_of(self.rate) {
            return;
        }
        let start = position + 1 - self.rate;
        let own = if self.overlap { self.dim } else { 0 };
        let before = if self.overlap { start.saturating_sub(self.rate)..start } else { start..start };
        let slots = before.map(|p| (p, 0)).chain((start..=position).map(|p| (p, own)));
        let slots: Vec<_> = slots.map(|(p, at)| (row(p), (p % self.rate) * self.width() + at, at)).collect();
        for (d, out) in out.iter_mut().enumerate() {
            let score = |((_, scores), place, at): &((&[f32], &[f32]), usize, usize)| {
                f64::from(scores[at + d]) + f64::from(places[place + d])
            };
            let max = slots.iter().map(score).fold(f64::NEG_INFINITY, f64::max);
            let (mut sum, mut total) = (0.0, 0.0);
            for slot in &slots {
                let weight = (score(slot) - max).exp();
                sum += weight * f64::from(slot.0.0[slot.2 + d]);
                total += weight;
            }
            *out = (sum / total) as f32;
        }
    }
}

impl Op for Compress {
    fn name(&self) -> &'static str {
        "compress"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let closed = |s: &super::super::SeqAxes| {
            let rate = self.rate as u64;
            u64::from(s.past + s.tokens) / rate - u64::from(s.past) / rate
        };
        let entries: u64 = axes.seqs.iter().map(closed).sum();
        let rows = entries * self.reach() as u64;
        NodeCost {
            weight_bytes: sizes.weight_bytes(view.program, view.place, &view.tensor(0), self.rate as u64),
            state_read_bytes: rows * 2 * sizes.kv_row_bytes(self.width()),
            flops: 4 * rows * self.dim as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let (places, past) = (cx.vector(0)?, cx.past);
        let state = cx.state(0).clone();
        let mut out = vec![0.0; (state.keys.len() - past) * self.dim];
        for (t, out) in out.chunks_mut(self.dim).enumerate() {
            self.entry(past + t, &places, |p| (&state.keys[p], &state.values[p]), out);
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
