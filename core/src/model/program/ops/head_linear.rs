//! `head_linear`: a linear map for each head, block by block: out's head h is W_h · x's head h.
//!
//! Reads x `[T, heads * k]`; writes out `[T, heads * n]`. Weight: a matrix of `heads * stride` rows in which head h has the
//! rows from `h * stride + first` on: n rows of k elements, or, `transposed`, k rows of n elements. Absorbed latent attention
//! takes both of its maps from one stored matrix so (DeepSeek-AI 2024, arXiv:2405.04434); a grouped output projection
//! is this op with groups for heads.

use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// A linear map a head.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLinear {
    /// Heads, or groups.
    pub heads: usize,
    /// Rows of the weight a head has.
    pub stride: usize,
    /// The map's first row among them.
    pub first: usize,
    /// Stored `[in, out]` a head.
    pub transposed: bool,
}

impl HeadLinear {
    /// Rows of the weight that a head's map of `k` inputs and `n` outputs has, within the whole.
    pub fn rows(&self, head: usize, k: usize, n: usize) -> std::ops::Range<usize> {
        let start = head * self.stride + self.first;
        start..start + if self.transposed { k } else { n }
    }
}

impl Op for HeadLinear {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let (k, n) = (view.read_width(0) / self.heads, view.write_width(0) / self.heads);
        let rows = if self.transposed { k } else { n } as u64;
        // Only the map's own rows are read of what may be a shared matrix.
        let whole = sizes.weight_bytes(view.program, view.place, &view.tensor(0), (self.heads * self.stride) as u64);
        NodeCost {
            weight_bytes: whole * rows / (self.stride as u64).max(1),
            flops: 2 * axes.tokens() * (self.heads * k * n) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let x = cx.read(0);
        let weight = cx.weight(0)?;
        let (k, n) = (cx.view.read_width(0) / self.heads, cx.view.write_width(0) / self.heads);
        let mut out = Vec::with_capacity(x.len() / k * n);
        for x in x.chunks(self.heads * k) {
            for (head, x) in x.chunks(k).enumerate() {
                let rows = &weight[self.rows(head, k, n)];
                out.extend((0..n).map(|j| {
                    let at = |i: usize| if self.transposed { rows[i][j] } else { rows[j][i] };
                    x.iter().enumerate().map(|(i, x)| f64::from(*x) * f64::from(at(i))).sum::<f64>() as f32
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
