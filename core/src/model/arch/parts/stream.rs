//! The residual stream: where it begins, how sublayers join it, and the head that reads it.

use super::super::builder::{BlockBuilder, ProgramBuilder};
use super::Norm;
use crate::model::program::ValueId;
use crate::model::program::ops::add::Add;
use crate::model::program::ops::embed::Embed;
use crate::model::program::ops::linear::Linear;
use crate::model::program::ops::select_rows::SelectRows;

/// Values along the residual stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The stream.
    pub(crate) x: ValueId,
    /// What a sublayer reads.
    pub(crate) normed: ValueId,
    /// What a sublayer gives.
    pub(crate) sublayer: ValueId,
    /// The rows the head reads.
    pub(crate) last: ValueId,
    /// The head's output.
    pub(crate) logits: ValueId,
}

/// Sizes of the stream's ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// Residual width.
    pub(crate) hidden: usize,
    /// Tokens the head scores.
    pub(crate) vocab: usize,
}

impl Ends {
    /// The stream's values.
    pub(crate) fn values(&self, builder: &mut ProgramBuilder) -> Stream {
        Stream {
            x: builder.tokens("x", self.hidden),
            normed: builder.tokens("normed", self.hidden),
            sublayer: builder.tokens("sublayer", self.hidden),
            last: builder.rows("last", self.hidden),
            logits: builder.rows("logits", self.vocab),
        }
    }

    /// A prologue that embeds tokens by the table `module.weight`.
    pub(crate) fn embed(&self, module: &str, scale: f32, stream: Stream) -> BlockBuilder {
        let mut block = BlockBuilder::new("prologue");
        let table = block.weight("embed", &format!("{module}.weight"), &[self.vocab, self.hidden], Some(0));
        block.op(Embed::scaled(scale), &[], &[stream.x], &[table]);
        block
    }

    /// An epilogue up to the logits: wanted rows, the norm `norm_module`, the head stored as `head`.
    pub(crate) fn head(&self, norm: Norm, norm_module: &str, head: &str, stream: Stream) -> BlockBuilder {
        self.head_biased(norm, norm_module, (head, None), stream)
    }

    /// The same with a head that may have a bias.
    pub(crate) fn head_biased(
        &self,
        norm: Norm,
        norm_module: &str,
        (head, bias): (&str, Option<&str>),
        stream: Stream,
    ) -> BlockBuilder {
        let mut block = BlockBuilder::new("epilogue");
        block.op(SelectRows, &[stream.x], &[stream.last], &[]);
        norm.put(&mut block, norm_module, "norm", self.hidden, (stream.last, stream.last));
        let mut weights = vec![block.weight("lm_head", head, &[self.vocab, self.hidden], Some(0))];
        weights.extend(bias.map(|bias| block.weight("lm_head", bias, &[self.vocab], Some(0))));
        block.op(Linear { bias: bias.is_some() }, &[stream.last], &[stream.logits], &weights);
        block
    }
}

/// Adds a sublayer's output to the stream, times `scale`.
pub(crate) fn join(block: &mut BlockBuilder, scale: f32, stream: Stream) {
    block.op(Add { scale }, &[stream.x, stream.sublayer], &[stream.x], &[]);
}

/// The head's tensor: its own, or the embedding's.
pub(crate) fn head_name(tied: bool) -> &'static str {
    if tied { "model.embed_tokens.weight" } else { "lm_head.weight" }
}
