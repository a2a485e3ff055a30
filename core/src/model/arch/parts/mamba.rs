//! A Mamba-2 mixer as a sublayer: project, convolve, recur, norm with a gate, gather.
//!
//! One fused map gives [z | x | B | C | dt]; it is used as five maps, and the one stored convolution as three, so that
//! each has values, a state and a multiplier of its own.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use crate::model::program::ops::gated_act::{Activation, GatedAct};
use crate::model::program::ops::gated_norm::GatedNorm;
use crate::model::program::ops::mamba2::Mamba2;
use crate::model::program::ops::scale::Scale;
use crate::model::program::ops::short_conv::ShortConv;
use crate::model::program::{StateDecl, ValueId, View};

/// The norm between recurrence and output map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OutputNorm {
    /// rms(y * silu(z)) over the elements of a group of heads.
    GateFirst,
    /// rms(y) * silu(z) over the elements of a group of heads.
    NormFirst,
    /// y * silu(z).
    None,
}

/// A Mamba-2 mixer.
#[derive(Clone, Debug)]
pub(crate) struct Mixer {
    /// Residual width.
    pub(crate) hidden: usize,
    /// The recurrence.
    pub(crate) scan: Mamba2,
    /// Taps of the convolutions.
    pub(crate) kernel: usize,
    /// Bias in the convolutions.
    pub(crate) conv_bias: bool,
    /// Bias in the maps.
    pub(crate) bias: bool,
    /// Shape in which the convolution's weight is stored.
    pub(crate) conv_stored: Vec<usize>,
    /// Before the output map.
    pub(crate) norm: OutputNorm,
    /// Epsilon of that norm.
    pub(crate) eps: f32,
    /// Factors on z, x, B, C and dt as the map gives them.
    pub(crate) multipliers: [f32; 5],
}

/// What a mixer works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixerValues {
    z: ValueId,
    dt: ValueId,
    /// x, B, C before the convolution.
    raw: [ValueId; 3],
    /// x, B, C after it.
    mixed: [ValueId; 3],
    out: ValueId,
}

impl Mixer {
    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> MixerValues {
        let (inner, shared) = (self.scan.inner(), self.scan.shared());
        let mut tokens = |name, width| builder.tokens(name, width);
        MixerValues {
            z: tokens("mamba.z", inner),
            dt: tokens("mamba.dt", self.scan.heads),
            raw: [tokens("mamba.x.raw", inner), tokens("mamba.b.raw", shared), tokens("mamba.c.raw", shared)],
            mixed: [tokens("mamba.x", inner), tokens("mamba.b", shared), tokens("mamba.c", shared)],
            out: tokens("mamba.out", inner),
        }
    }

    /// The whole sublayer, its tensors below `module`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: MixerValues,
        (from, to): (ValueId, ValueId),
    ) {
        self.project(block, module, values, from);
        self.convolve(block, module, values);
        let heads = [self.scan.heads];
        let weights = [("A_log", "A_log"), ("dt_bias", "dt_bias"), ("D", "D")]
            .map(|(role, name)| block.weight(role, &format!("{module}.{name}"), &heads, Some(0)));
        let state = block.state(self.scan.state());
        let [x, b, c] = values.mixed;
        block.node(self.scan.clone(), &[x, b, c, values.dt], &[values.out], &weights, &[state]);
        let gated = self.gate(block, module, values);
        let map = Map::gather(self.hidden, self.scan.inner()).with_bias(self.bias);
        block.linear("out_proj", &format!("{module}.out_proj"), map, gated, to);
    }

    fn project(&self, block: &mut BlockBuilder, module: &str, values: MixerValues, from: ValueId) {
        let (inner, shared) = (self.scan.inner(), self.scan.shared());
        let outputs = 2 * inner + 2 * shared + self.scan.heads;
        let [x, b, c] = values.raw;
        let parts = [
            ("z_proj", values.z, inner),
            ("x_proj", x, inner),
            ("b_proj", b, shared),
            ("c_proj", c, shared),
            ("dt_proj", values.dt, self.scan.heads),
        ];
        let mut first = 0;
        for ((role, to, out), factor) in parts.into_iter().zip(self.multipliers) {
            let stored = Stored { outputs, first, transposed: false };
            let map = Map::columns(out, self.hidden).with_bias(self.bias).stored(stored);
            block.linear(role, &format!("{module}.in_proj"), map, from, to);
            if factor != 1.0 {
                block.op(Scale { factor }, &[to], &[to], &[]);
            }
            first += out;
        }
    }

    fn convolve(&self, block: &mut BlockBuilder, module: &str, values: MixerValues) {
        let (inner, shared) = (self.scan.inner(), self.scan.shared());
        let conv =
            ShortConv { kernel: self.kernel, dilation: 1, bias: self.conv_bias, activation: Some(Activation::Silu) };
        let roles = [("x_conv", 0, inner), ("b_conv", inner, shared), ("c_conv", inner + shared, shared)];
        for (i, (role, first, channels)) in roles.into_iter().enumerate() {
            let rows = first..first + channels;
            let view = View { stored: self.conv_stored.clone(), transposed: false, rows: rows.clone() };
            let shape = [channels, self.kernel];
            let mut weights = vec![block.view(role, &format!("{module}.conv1d.weight"), &shape, Some(0), Some(view))];
            if self.conv_bias {
                let view = View { stored: vec![inner + 2 * shared], transposed: false, rows };
                weights.push(block.view(role, &format!("{module}.conv1d.bias"), &[channels], Some(0), Some(view)));
            }
            let state = block.state(StateDecl::recurrent(role, &[conv.reach(), channels]));
            block.node(conv.clone(), &[values.raw[i]], &[values.mixed[i]], &weights, &[state]);
        }
    }

    /// Applies the gate z; returns where the result is.
    fn gate(&self, block: &mut BlockBuilder, module: &str, values: MixerValues) -> ValueId {
        let inner = self.scan.inner();
        if self.norm == OutputNorm::None {
            let act = GatedAct::plain(Activation::Silu);
            block.op(act, &[values.z, values.out], &[values.z], &[]);
            return values.z;
        }
        let norm = GatedNorm {
            group: inner / self.scan.groups,
            eps: self.eps,
            activation: Activation::Silu,
            gate_first: self.norm == OutputNorm::GateFirst,
        };
        let weight = block.weight("norm", &format!("{module}.norm.weight"), &[inner], None);
        block.op(norm, &[values.out, values.z], &[values.out], &[weight]);
        values.out
    }
}
