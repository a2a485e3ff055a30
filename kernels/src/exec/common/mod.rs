//! Kernels that both styles share, because there is only one way to do them: sums, copies, gathers,
//! recurrences.

mod act;
mod add;
mod add_gated;
mod add_positions;
mod altup_correct;
mod altup_predict;
mod carry;
mod compress;
mod concat;
mod embed;
mod gated_delta;
mod gated_norm;
mod head_linear;
mod hyper_gates;
mod hyper_join;
mod hyper_read;
mod index_topk;
mod indexed_attention;
mod inject;
mod join_heads;
mod kv_write;
mod latent_attention;
mod latent_rows;
mod layer_norm;
mod layer_slice;
mod mamba2;
mod match_rms;
mod mean_streams;
pub(crate) mod moe_experts;
mod moe_route;
mod mul;
mod ngram_embed;
mod recurrence;
#[cfg(test)]
mod recurrence_tests;
mod repeat;
pub(crate) mod rows;
mod scale;
mod scale_by_position;
mod select_rows;
mod short_conv;
mod sparsify;
mod stream_gate;
mod take_columns;

use super::step::{Kernel, Lowering};
use crit_core::runtime::EngineError;

/// How an op becomes a kernel.
pub type Lower = fn(Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError>;

/// An op's name with how it is lowered.
pub type Entry = (&'static str, Lower);

/// The shared kernels, sorted by op.
pub const KERNELS: &[Entry] = &[
    ("act", act::lower),
    ("add", add::lower),
    ("add_gated", add_gated::lower),
    ("add_positions", add_positions::lower),
    ("altup_correct", altup_correct::lower),
    ("altup_predict", altup_predict::lower),
    ("carry", carry::lower),
    ("compress", compress::lower),
    ("concat", concat::lower),
    ("embed", embed::lower),
    ("gated_delta", gated_delta::lower),
    ("gated_norm", gated_norm::lower),
    ("head_linear", head_linear::lower),
    ("hyper_gates", hyper_gates::lower),
    ("hyper_join", hyper_join::lower),
    ("hyper_read", hyper_read::lower),
    ("index_topk", index_topk::lower),
    ("indexed_attention", indexed_attention::lower),
    ("inject", inject::lower),
    ("join_heads", join_heads::lower),
    ("kv_write", kv_write::lower),
    ("latent_attention", latent_attention::lower),
    ("layer_norm", layer_norm::lower),
    ("layer_slice", layer_slice::lower),
    ("mamba2", mamba2::lower),
    ("match_rms", match_rms::lower),
    ("mean_streams", mean_streams::lower),
    ("moe_route", moe_route::lower),
    ("mul", mul::lower),
    ("ngram_embed", ngram_embed::lower),
    ("repeat", repeat::lower),
    ("scale", scale::lower),
    ("scale_by_position", scale_by_position::lower),
    ("select_rows", select_rows::lower),
    ("short_conv", short_conv::lower),
    ("sparsify", sparsify::lower),
    ("stream_gate", stream_gate::lower),
    ("take_columns", take_columns::lower),
];
