//! Norms with their weights.

use super::super::builder::BlockBuilder;
use crate::model::program::ValueId;
use crate::model::program::ops::layer_norm::LayerNorm;
use crate::model::program::ops::rms_norm::RmsNorm;

/// A family's norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Norm {
    /// Root mean square; `offset` is added to the stored weight.
    Rms {
        /// Added to the mean of squares.
        eps: f32,
        /// Added to the stored weight.
        offset: f32,
    },
    /// Mean and variance.
    Layer {
        /// Added to the variance.
        eps: f32,
        /// Whether there is a bias, `module.bias`.
        bias: bool,
    },
}

/// Divides groups of `group` elements by their root mean square: a norm without a weight.
pub(crate) fn weightless(block: &mut BlockBuilder, eps: f32, group: usize, (from, to): (ValueId, ValueId)) {
    block.op(RmsNorm { group, eps, offset: 0.0 }, &[from], &[to], &[]);
}

impl Norm {
    /// Norms groups of `group` elements with the weight stored as `module.weight`.
    pub(crate) fn put(
        self,
        block: &mut BlockBuilder,
        module: &str,
        role: &'static str,
        group: usize,
        (from, to): (ValueId, ValueId),
    ) {
        let weight = block.weight(role, &format!("{module}.weight"), &[group], None);
        match self {
            Self::Rms { eps, offset } => block.op(RmsNorm { group, eps, offset }, &[from], &[to], &[weight]),
            Self::Layer { eps, bias } => {
                let mut weights = vec![weight];
                if bias {
                    weights.push(block.weight(role, &format!("{module}.bias"), &[group], None));
                }
                block.op(LayerNorm { group, eps, bias }, &[from], &[to], &weights);
            }
        }
    }
}
