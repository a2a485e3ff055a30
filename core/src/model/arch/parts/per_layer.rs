//! Per-layer embeddings: each token has, beside its embedding, a small vector for every layer (gemma3n, gemma4).
//!
//! In the prologue the token's row of a table of its own and a projection of its embedding are mixed; each layer then
//! gates its slice into the residual stream.

use super::super::builder::{BlockBuilder, Map, ProgramBuilder};
use super::Norm;
use super::stream::Stream;
use crate::model::program::ValueId;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::gated_act::{Activation, GatedAct};
use crate::model::program::ops::layer_slice::LayerSlice;
use crate::model::program::ops::rms_norm::RmsNorm;
use crate::model::program::ops::scale::Scale;

/// Sizes of per-layer embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerLayer {
    /// Residual width.
    pub(crate) hidden: usize,
    /// Elements a layer.
    pub(crate) width: usize,
    /// Layers.
    pub(crate) layers: usize,
    /// Rows of the table.
    pub(crate) vocab: usize,
    /// Norm epsilon.
    pub(crate) eps: f32,
    /// On the gate.
    pub(crate) activation: Activation,
}

/// What they are kept in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerLayerValues {
    all: ValueId,
    looked_up: ValueId,
    own: ValueId,
    gate: ValueId,
}

impl PerLayer {
    /// Values of these sizes.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> PerLayerValues {
        PerLayerValues {
            all: builder.tokens("per_layer", self.layers * self.width),
            looked_up: builder.tokens("per_layer_embedding", self.layers * self.width),
            own: builder.tokens("per_layer_own", self.width),
            gate: builder.tokens("per_layer_gate", self.width),
        }
    }

    /// The prologue's part, after the embedding.
    pub(crate) fn embed(&self, block: &mut BlockBuilder, values: PerLayerValues, stream: Stream) {
        let PerLayerValues { all, looked_up, .. } = values;
        let total = self.layers * self.width;
        let table = block.weight("per_layer", "model.embed_tokens_per_layer.weight", &[self.vocab, total], Some(0));
        let embed = Embed { scale: (self.width as f32).sqrt(), past_end: Some(0) };
        block.op(embed, &[], &[looked_up], &[table]);
        let map = Map::columns(total, self.hidden);
        block.linear("per_layer_proj", "model.per_layer_model_projection", map, stream.x, all);
        block.op(Scale { factor: (self.hidden as f32).powf(-0.5) }, &[all], &[all], &[]);
        let norm = block.weight("per_layer_norm", "model.per_layer_projection_norm.weight", &[self.width], None);
        block.op(RmsNorm { group: self.width, eps: self.eps, offset: 0.0 }, &[all], &[all], &[norm]);
        block.op(Add::SUM, &[all, looked_up], &[all], &[]);
        block.op(Scale { factor: std::f32::consts::FRAC_1_SQRT_2 }, &[all], &[all], &[]);
    }

    /// A layer's part: what its slice, gated by `from`, gives to the stream, in `to`.
    pub(crate) fn gate(&self, block: &mut BlockBuilder, values: PerLayerValues, (from, to): (ValueId, ValueId)) {
        let PerLayerValues { all, own, gate, .. } = values;
        let map = Map::columns(self.width, self.hidden);
        block.linear("per_layer_gate", "per_layer_input_gate", map, from, gate);
        block.op(LayerSlice, &[all], &[own], &[]);
        block.op(GatedAct::plain(self.activation), &[gate, own], &[gate], &[]);
        block.linear("per_layer_out", "per_layer_projection", Map::gather(self.hidden, self.width), gate, to);
        let norm = Norm::Rms { eps: self.eps, offset: 0.0 };
        norm.put(block, "post_per_layer_input_norm", "post_per_layer_input_norm", self.hidden, (to, to));
    }
}
