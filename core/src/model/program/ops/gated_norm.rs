//! `gated_norm`: a root-mean-square norm with a gate, on the output of a recurrence.
//!
//! Reads x, gate `[T, n]`; writes y `[T, n]` (may be x); n is a multiple of `group`. Weight: `[group]`, shared by all
//! groups, or `[n]`. With rms(x) = x / sqrt(mean(x²) + eps) over each group, norm first: y = w * rms(x) * act(gate)
//! (delta nets); gate first: y = w * rms(x * act(gate)) (Mamba-2).

use super::gated_act::Activation;
use crate::model::program::op::NodeView;
use crate::model::program::{Axes, NodeCost, Op, PlainCx, PlainError, StoredSizes};
use std::any::Any;

/// Norm with a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNorm {
    /// Elements a norm is taken over.
    pub group: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// On the gate.
    pub activation: Activation,
    /// Whether the gate comes before the norm.
    pub gate_first: bool,
}

impl Op for GatedNorm {
    fn name(&self) -> &'static str {
        "gated_norm"
    }

    fn cost(&self, view: &NodeView<'_>, axes: &Axes, sizes: &dyn StoredSizes) -> NodeCost {
        NodeCost {
            weight_bytes: sizes.weight_bytes(view.program, view.place, &view.tensor(0), 1),
            flops: 12 * axes.tokens() * view.write_width(0) as u64,
            ..NodeCost::default()
        }
    }

    fn plain(&self, cx: &mut PlainCx<'_>) -> Result<(), PlainError> {
        let weight = cx.vector(0)?;
        let (mut out, gate) = (cx.read(0), cx.read(1));
        let width = cx.view.write_width(0);
        for (row, gate) in out.chunks_mut(width).zip(gate.chunks(width)) {
            let factor: Vec<f64> = gate.iter().map(|g| self.activation.eval(f64::from(*g))).collect();
            for (g, group) in row.chunks_mut(self.group).enumerate() {
                let gate = &factor[g * self.group..];
                let mut x: Vec<f64> = group.iter().map(|x| f64::from(*x)).collect();
                if self.gate_first {
                    x.iter_mut().zip(gate).for_each(|(x, f)| *x *= f);
                }
                let mean = x.iter().map(|x| x * x).sum::<f64>() / self.group as f64;
                let scale = 1.0 / (mean + f64::from(self.eps)).sqrt();
                for (i, y) in group.iter_mut().enumerate() {
                    let after = if self.gate_first { 1.0 } else { gate[i] };
                    let w = f64::from(weight[(g * self.group + i) % weight.len()]);
                    *y = (w * x[i] * scale * after) as f32;
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
