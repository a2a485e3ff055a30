//! A gated delta net as a sublayer: project, convolve, recur, norm with a gate, gather.
//!
//! Two layouts of the fused maps exist: q, k and v one below the other with z, b and a apart (qwen3_5), or everything
//! key head by key head (qwen3_next). Tensors are named as both have them below the module.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder, Stored};
use crate::model::program::ops::gated_act::Activation;
use crate::model::program::ops::gated_delta::GatedDelta;
use crate::model::program::ops::gated_norm::GatedNorm;
use crate::model::program::ops::short_conv::ShortConv;
use crate::model::program::ops::take_columns::TakeColumns;
use crate::model::program::{StateDecl, ValueId, View};

/// A gated delta net.
#[derive(Clone, Debug)]
pub(crate) struct DeltaNet {
    /// Residual width.
    pub(crate) hidden: usize,
    /// The recurrence.
    pub(crate) rule: GatedDelta,
    /// Taps of the convolutions.
    pub(crate) kernel: usize,
    /// Shape in which the convolution's weight is stored.
    pub(crate) conv_stored: Vec<usize>,
    /// Epsilon of the gated norm.
    pub(crate) eps: f32,
    /// On the gate z.
    pub(crate) activation: Activation,
    /// Whether maps are fused key head by key head.
    pub(crate) fused_by_head: bool,
}

/// What a delta net works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaValues {
    /// q, k, v before the convolution.
    raw: [ValueId; 3],
    /// q, k, v after it.
    mixed: [ValueId; 3],
    z: ValueId,
    a: ValueId,
    b: ValueId,
    out: ValueId,
    /// q, k, v, z and b, a as fused maps give them.
    fused: Option<[ValueId; 2]>,
}

impl DeltaNet {
    fn key_width(&self) -> usize {
        self.rule.key_heads * self.rule.key_dim
    }

    fn value_width(&self) -> usize {
        self.rule.value_heads * self.rule.value_dim
    }

    /// Values of this shape.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> DeltaValues {
        let (key, value, heads) = (self.key_width(), self.value_width(), self.rule.value_heads);
        let mut tokens = |name, width| builder.tokens(name, width);
        DeltaValues {
            raw: [tokens("delta.q.raw", key), tokens("delta.k.raw", key), tokens("delta.v.raw", value)],
            mixed: [tokens("delta.q", key), tokens("delta.k", key), tokens("delta.v", value)],
            z: tokens("delta.z", value),
            a: tokens("delta.a", heads),
            b: tokens("delta.b", heads),
            out: tokens("delta.out", value),
            fused: self.fused_by_head.then(|| [tokens("delta.qkvz", 2 * (key + value)), tokens("delta.ba", 2 * heads)]),
        }
    }

    /// The whole sublayer, its tensors below `module`.
    pub(crate) fn put(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: DeltaValues,
        (from, to): (ValueId, ValueId),
    ) {
        match values.fused {
            Some(fused) => self.project_by_head(block, module, values, fused, from),
            None => self.project(block, module, values, from),
        }
        self.convolve(block, module, values);
        let [q, k, v] = values.mixed;
        let heads = [self.rule.value_heads];
        let a_log = block.weight("A_log", &format!("{module}.A_log"), &heads, Some(0));
        let bias = block.weight("dt_bias", &format!("{module}.dt_bias"), &heads, Some(0));
        let state = block.state(self.rule.state());
        let reads = [q, k, v, values.a, values.b];
        block.node(self.rule.clone(), &reads, &[values.out], &[a_log, bias], &[state]);
        let group = self.rule.value_dim;
        let norm = GatedNorm { group, eps: self.eps, activation: self.activation, gate_first: false };
        let weight = block.weight("norm", &format!("{module}.norm.weight"), &[group], None);
        block.op(norm, &[values.out, values.z], &[values.out], &[weight]);
        let map = Map::gather(self.hidden, self.value_width());
        block.linear("out_proj", &format!("{module}.out_proj"), map, values.out, to);
    }

    fn project(&self, block: &mut BlockBuilder, module: &str, values: DeltaValues, from: ValueId) {
        let (key, value) = (self.key_width(), self.value_width());
        let outputs = 2 * key + value;
        let widths = [("q_proj", 0, key), ("k_proj", key, key), ("v_proj", 2 * key, value)];
        for ((role, first, out), to) in widths.into_iter().zip(values.raw) {
            let map = Map::columns(out, self.hidden).stored(Stored { outputs, first, transposed: false });
            block.linear(role, &format!("{module}.in_proj_qkv"), map, from, to);
        }
        let heads = self.rule.value_heads;
        let apart = [("in_proj_z", values.z, value), ("in_proj_b", values.b, heads), ("in_proj_a", values.a, heads)];
        for (role, to, out) in apart {
            block.linear(role, &format!("{module}.{role}"), Map::columns(out, self.hidden), from, to);
        }
    }

    fn project_by_head(
        &self,
        block: &mut BlockBuilder,
        module: &str,
        values: DeltaValues,
        [qkvz, ba]: [ValueId; 2],
        from: ValueId,
    ) {
        let (key, value, heads) = (self.key_width(), self.value_width(), self.rule.value_heads);
        for (role, to, out) in [("in_proj_qkvz", qkvz, 2 * (key + value)), ("in_proj_ba", ba, 2 * heads)] {
            block.linear(role, &format!("{module}.{role}"), Map::columns(out, self.hidden), from, to);
        }
        let per_key = heads / self.rule.key_heads;
        let (dk, dv) = (self.rule.key_dim, per_key * self.rule.value_dim);
        let [q, k, v] = values.raw;
        let mut at = 0;
        for (to, len) in [(q, dk), (k, dk), (v, dv), (values.z, dv)] {
            block.op(TakeColumns { group: 2 * (dk + dv), at, len }, &[qkvz], &[to], &[]);
            at += len;
        }
        for (to, at) in [(values.b, 0), (values.a, per_key)] {
            block.op(TakeColumns { group: 2 * per_key, at, len: per_key }, &[ba], &[to], &[]);
        }
    }

    /// One stored convolution over q, k and v, done as three so that each has values and a state of its own.
    fn convolve(&self, block: &mut BlockBuilder, module: &str, values: DeltaValues) {
        let (key, value) = (self.key_width(), self.value_width());
        let conv = ShortConv { kernel: self.kernel, dilation: 1, bias: false, activation: Some(Activation::Silu) };
        let roles = [("q_conv", 0, key), ("k_conv", key, key), ("v_conv", 2 * key, value)];
        for (i, (role, first, channels)) in roles.into_iter().enumerate() {
            let view = View { stored: self.conv_stored.clone(), transposed: false, rows: first..first + channels };
            let shape = [channels, self.kernel];
            let weight = block.view(role, &format!("{module}.conv1d.weight"), &shape, Some(0), Some(view));
            let state = block.state(StateDecl::recurrent(role, &[conv.reach(), channels]));
            block.node(conv.clone(), &[values.raw[i]], &[values.mixed[i]], &[weight], &[state]);
        }
    }
}
