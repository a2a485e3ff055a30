//! The ops, one file each. A new op is one file, one `mod` line, one line in [`NAMES`].

pub mod act;
pub mod add;
pub mod add_gated;
pub mod add_positions;
pub mod altup_correct;
pub mod altup_predict;
pub mod attention;
pub mod carry;
pub mod compress;
pub mod concat;
pub mod embed;
pub mod gated_act;
pub mod gated_delta;
pub mod gated_norm;
pub mod head_linear;
pub mod hyper_gates;
pub mod hyper_join;
pub mod hyper_read;
pub mod index_topk;
pub mod indexed_attention;
pub mod inject;
pub mod join_heads;
pub mod kv_write;
pub mod latent_attention;
pub mod layer_norm;
pub mod layer_slice;
pub mod linear;
pub mod mamba2;
pub mod match_rms;
pub mod mean_streams;
pub mod moe_experts;
pub mod moe_route;
pub mod mul;
pub mod ngram_embed;
pub mod repeat;
pub mod rms_norm;
pub mod rope;
pub mod scale;
pub mod scale_by_position;
pub mod select_rows;
pub mod short_conv;
pub mod softcap;
pub mod sparsify;
pub mod stream_gate;
pub mod take_columns;

/// Every op's name, sorted: what a backend must cover.
pub const NAMES: &[&str] = &[
    "act",
    "add",
    "add_gated",
    "add_positions",
    "altup_correct",
    "altup_predict",
    "attention",
    "carry",
    "compress",
    "concat",
    "embed",
    "gated_act",
    "gated_delta",
    "gated_norm",
    "head_linear",
    "hyper_gates",
    "hyper_join",
    "hyper_read",
    "index_topk",
    "indexed_attention",
    "inject",
    "join_heads",
    "kv_write",
    "latent_attention",
    "layer_norm",
    "layer_slice",
    "linear",
    "mamba2",
    "match_rms",
    "mean_streams",
    "moe_experts",
    "moe_route",
    "mul",
    "ngram_embed",
    "repeat",
    "rms_norm",
    "rope",
    "scale",
    "scale_by_position",
    "select_rows",
    "short_conv",
    "softcap",
    "sparsify",
    "stream_gate",
    "take_columns",
];
