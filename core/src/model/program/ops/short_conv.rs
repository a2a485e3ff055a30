//! `short_conv`: causal convolution over time, each channel by itself, and an activation.
//!
//! Reads x `[T, channels]`; writes y `[T, channels]` (not x): y[t, c] = act(bias[c] + sum over j < kernel of
//! w[c, j] * x[t - (kernel - 1 - j) * dilation, c]), x being 0 before the sequence. Weights: w `[channels, kernel]` (an
//! axis of 1 between is fine), then bias `[channels]` if any. State: the last (kernel - 1) * dilation rows of x, oldest
//! first.

use super::gated_act::Activation;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Causal depthwise convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Taps.
    pub kernel: usize,
    /// Positions from one tap to the next.
    pub dilation: usize,
    /// Whether the second weight is a bias.
    pub bias: bool,
    /// On the sum, if any.
    pub activation: Option<Activation>,
}

impl ShortConv {
    /// Rows of the state: earlier positions that the taps reach.
    pub fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }
}

impl Op for ShortConv {
    fn name(&self) -> &'static str {
        "short_conv"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        let channels = view.write_width(0) as u64;
        let weights = 0..view.node.weights.len();
        let state = 4 * axes.seqs.len() as u64 * self.reach() as u64 * channels;
        NodeCost {
            weight_bytes: weights
                .map(|i| sizes.weight_bytes(view.program, view.place, &view.tensor(i), channels))
                .sum(),
            state_read_bytes: state,
            state_write_bytes: state,
            flops: 2 * axes.tokens() * channels * self.kernel as u64,
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let channels = cx.view.write_width(0);
        let weight = cx.vector(0)?;
        let bias = if self.bias { cx.vector(1)? } else { vec![0.0; channels] };
        let x = cx.read(0);
        let state = cx.elements(0);
        // All rows there are: those the state remembers, then the step's.
        let rows = [&*state, &x].concat();
        let tokens = x.len() / channels;
        let mut out = vec![0.0; x.len()];
        for t in 0..tokens {
            for c in 0..channels {
                let tap = |j: usize| f64::from(weight[c * self.kernel + j]);
                let row = |j: usize| f64::from(rows[(t + j * self.dilation) * channels + c]);
                let sum = f64::from(bias[c]) + (0..self.kernel).map(|j| tap(j) * row(j)).sum::<f64>();
                out[t * channels + c] = self.activation.map_or(sum, |act| act.eval(sum)) as f32;
            }
        }
        let kept = state.len();
        state.copy_from_slice(&rows[rows.len() - kept..]);
        cx.write(0, out);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
