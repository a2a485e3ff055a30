//! `rope`: rotary position embedding (Su et al. 2021, arXiv:2104.09864) over each head, in place or not.
//!
//! Reads x `[T, heads * head_dim]`; writes the same shape. Token t of a sequence stands at its absolute position p.
//! Pair i of a head, i < r/2 with r = 2 * inv_freq.len() <= head_dim, turns by the angle p * inv_freq[i]:
//! (a, b) -> (a cos - b sin, b cos + a sin), cos and sin scaled by `magnitude`. Elements from r on pass through.
//! With an `offset` all this is about the elements from there on, and those before it pass through too. With `every` p is
//! the first position of the token's run of so many.
//! Half-split pairs element i with i + r/2; interleaved pairs 2i with 2i + 1.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;
use std::sync::Arc;

/// Which elements of a head form a rotating pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Element i with i + r/2.
    HalfSplit,
    /// Element 2i with 2i + 1.
    Interleaved,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Elements a head.
    pub head_dim: usize,
    /// Radians a position for each pair, scaling included.
    pub inv_freq: Arc<[f32]>,
    /// Factor on cos and sin (yarn's attention factor; 1 otherwise).
    pub magnitude: f32,
    /// How pairs are laid out.
    pub pairs: RopePairs,
    /// Elements of a head before the rotating ones.
    pub offset: usize,
    /// Other angles for long sequences, if any.
    pub long: Option<LongRope>,
    /// Positions of a run that turn alike, as its first one does; 1 otherwise.
    pub every: usize,
}

/// The angles of sequences of more than so many tokens (phi3's longrope, Ding et al. 2024, arXiv:2402.13753): all
/// positions of such a sequence turn by them, so one that grows past the limit is computed anew.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Tokens up to which a sequence is not long.
    pub above: usize,
    /// Radians a position for each pair.
    pub inv_freq: Arc<[f32]>,
}

impl Rope {
    /// Radians a position for each pair in a sequence of `length` tokens.
    pub fn angles(&self, length: usize) -> &Arc<[f32]> {
        match &self.long {
            Some(long) if length > long.above => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// The position by which a token at `position` turns.
    pub fn turn(&self, position: usize) -> usize {
        position - position % self.every
    }

    /// The two element indices of pair `i` within a head.
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairs {
            RopePairs::HalfSplit => (self.offset + i, self.offset + i + self.inv_freq.len()),
            RopePairs::Interleaved => (self.offset + 2 * i, self.offset + 2 * i + 1),
        }
    }
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, _: &dyn StoredSizes) -> NodeCost {
        NodeCost { flops: 3 * axes.tokens() * view.write_width(0) as u64, ..NodeCost::default() }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let mut out = cx.read(0);
        let width = cx.view.write_width(0);
        for (t, row) in out.chunks_mut(width).enumerate() {
            let position = self.turn(cx.past + t) as f64;
            for head in row.chunks_mut(self.head_dim) {
                for (i, freq) in self.angles(cx.length).iter().enumerate() {
                    let (sin, cos) = (position * f64::from(*freq)).sin_cos();
                    let (sin, cos) = (sin * f64::from(self.magnitude), cos * f64::from(self.magnitude));
                    let (x, y) = self.pair(i);
                    let (a, b) = (f64::from(head[x]), f64::from(head[y]));
                    head[x] = (a * cos - b * sin) as f32;
                    head[y] = (b * cos + a * sin) as f32;
                }
            }
        }
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
