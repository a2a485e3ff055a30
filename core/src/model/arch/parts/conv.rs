//! lfm2's gated short convolution: out(C * conv(B * x)), with B, C and x from one fused map.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use crate::model::program::ops::mul::Mul;
use crate::model::program::ops::short_conv::ShortConv;
use crate::model::program::{StateDecl, ValueId};

/// Sizes and choices of a gated convolution.
#[derive(Clone, Debug)]
pub(crate) struct GatedConv {
    /// Residual width, and channels.
    pub(crate) hidden: usize,
    /// Taps.
    pub(crate) kernel: usize,
    /// Bias in the maps and the convolution.
    pub(crate) bias: bool,
    /// Shape in which the convolution's weight is stored.
    pub(crate) conv_stored: Vec<usize>,
}

/// What it works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedConvValues {
    b: ValueId,
    c: ValueId,
    x: ValueId,
    mixed: ValueId,
}

impl GatedConv {
    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> GatedConvValues {
        let mut tokens = |name| builder.tokens(name, self.hidden);
        GatedConvValues { b: tokens("conv.b"), c: tokens("conv.c"), x: tokens("conv.x"), mixed: tokens("conv.mixed") }
    }

    /// The whole sublayer, its tensors below `module`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: GatedConvValues,
        (from, to): (ValueId, ValueId),
    ) {
        let (hidden, outputs) = (self.hidden, 3 * self.hidden);
        let parts = [("in_proj_b", values.b), ("in_proj_c", values.c), ("in_proj_x", values.x)];
        for (i, (role, to)) in parts.into_iter().enumerate() {
            let stored = Stored { outputs, first: i * hidden, transposed: false };
            let map = Map::columns(hidden, hidden).with_bias(self.bias).stored(stored);
            block.linear(role, &format!("{module}.in_proj"), map, from, to);
        }
        block.op(Mul, &[values.b, values.x], &[values.b], &[]);
        let conv = ShortConv { kernel: self.kernel, dilation: 1, bias: self.bias, activation: None };
        let mut weights = vec![block.weight("conv", &format!("{module}.conv.weight"), &self.conv_stored, Some(0))];
        if self.bias {
            weights.push(block.weight("conv_bias", &format!("{module}.conv.bias"), &[hidden], Some(0)));
        }
        let state = block.state(StateDecl::recurrent("conv", &[conv.reach(), hidden]));
        block.node(conv, &[values.b], &[values.mixed], &weights, &[state]);
        block.op(Mul, &[values.c, values.mixed], &[values.c], &[]);
        let map = Map::gather(hidden, hidden).with_bias(self.bias);
        block.linear("out_proj", &format!("{module}.out_proj"), map, values.c, to);
    }
}
