//! bamba: Mamba-2 mixers among a few layers of attention, half of each head rotated, an MLP in every layer.
//!
//! Reference: transformers `models/bamba/modeling_bamba.py`.

use super::builder::{BlockBuilder, ProgramBuilder, Sizes};
use super::dense::{Dense, LAYER};
use super::hybrid::partial_rope;
use super::mamba::{expanded, mixer};
use super::parts::mamba::{Mixer, MixerValues, OutputNorm};
use super::parts::stream::{self, Ends, Stream, head_name};
use super::parts::{Attend, AttentionShape, AttentionValues, Mlp, MlpValues, Norm};
use super::rope::RopeTable;
use super::{ArchError, Family, Source};
use crate::model::program::Program;
use crate::model::program::ops::rope::RopePairs;

/// The family.
pub const FAMILY: Family = Family { name: "bamba", model_types: &["bamba"], program };

struct Bamba {
    ends: Ends,
    norm: Norm,
    attention: AttentionShape,
    bias: bool,
    rope: RopeTable,
    pairs: RopePairs,
    mixer: Mixer,
    mlp: Mlp,
}

#[derive(Clone, Copy)]
struct Values {
    stream: Stream,
    attention: AttentionValues,
    mixer: MixerValues,
    mlp: MlpValues,
}

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let dense = Dense::from_config("bamba", source)?;
    let (hidden, head_dim, bias) = (dense.hidden, dense.head_dim, dense.qkv_bias);
    let model = Bamba {
        ends: Ends { hidden, vocab: dense.vocab },
        norm: Norm::Rms { eps: config.f64_or("rms_norm_eps", 1e-5)? as f32, offset: 0.0 },
        attention: AttentionShape { hidden, heads: dense.heads, kv_heads: dense.kv_heads, head_dim },
        bias,
        rope: partial_rope(source, head_dim, 0.5)?,
        pairs: dense.pairs,
        mixer: mixer(source, expanded(source)?, OutputNorm::GateFirst)?,
        mlp: Mlp { hidden, intermediate: dense.intermediate, activation: dense.activation, bias: dense.mlp_bias },
    };
    let attends = config.opt_usize_list("attn_layer_indices")?.unwrap_or_default();
    let layers: Vec<bool> = (0..dense.layers.len()).map(|i| attends.contains(&i)).collect();
    model.program(source, &layers, dense.max_context)
}

impl Bamba {
    fn program(&self, source: &Source<'_>, layers: &[bool], max_context: usize) -> Result<Program, ArchError> {
        let mut builder = ProgramBuilder::new("bamba");
        let values = Values {
            stream: self.ends.values(&mut builder),
            attention: self.attention.values(&mut builder),
            mixer: self.mixer.values(&mut builder),
            mlp: MlpValues::new(&mut builder, self.mlp.intermediate),
        };
        let prologue = builder.add(self.ends.embed("model.embed_tokens", 1.0, values.stream));
        let head = head_name(source.tied_head()?);
        let epilogue = builder.add(self.ends.head(self.norm, "model.final_layernorm", head, values.stream));
        let blocks = [false, true].map(|full| layers.contains(&full).then(|| builder.add(self.layer(values, full))));
        builder.place(prologue, None);
        for (layer, full) in layers.iter().enumerate() {
            if let Some(block) = blocks[usize::from(*full)] {
                builder.place(block, Some(layer));
            }
        }
        builder.place(epilogue, None);
        let Ends { hidden, vocab } = self.ends;
        builder.finish(&Sizes { vocab, hidden, layers: layers.len(), max_context }, values.stream.logits)
    }

    fn layer(&self, values: Values, full: bool) -> BlockBuilder {
        let Stream { x, normed, sublayer, .. } = values.stream;
        let hidden = self.ends.hidden;
        let mut block = BlockBuilder::under(if full { "layer.full" } else { "layer.mamba" }, LAYER);
        self.norm.put(&mut block, "input_layernorm", "input_norm", hidden, (x, normed));
        match full {
            true => self.attend(&mut block, values),
            false => self.mixer.put(&mut block, "mamba", values.mixer, (normed, sublayer)),
        }
        stream::join(&mut block, 1.0, values.stream);
        self.norm.put(&mut block, "pre_ff_layernorm", "pre_ff_norm", hidden, (x, normed));
        self.mlp.put(&mut block, "feed_forward", values.mlp, (normed, sublayer));
        stream::join(&mut block, 1.0, values.stream);
        block
    }

    fn attend(&self, block: &mut BlockBuilder, values: Values) {
        let (shape, inner, Stream { normed, sublayer, .. }) = (self.attention, values.attention, values.stream);
        shape.project(block, "self_attn", self.bias, normed, inner);
        shape.rotate(block, &self.rope, self.pairs, inner);
        shape.attend(block, Attend::full(shape.usual_scale()), inner);
        shape.gather(block, "self_attn.o_proj", self.bias, inner, sublayer);
    }
}
