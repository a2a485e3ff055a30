//! The entries, one folder each.

pub mod cuda_early_start;
pub mod cuda_flash_prefill;
pub mod cuda_fused_gate;
pub mod cuda_fused_heads;
pub mod cuda_fused_norm;
pub mod cuda_fused_residual;
pub mod cuda_graph_step;
pub mod cuda_merged_projections;
pub mod cuda_split_decode;
pub mod cuda_stream_gemv;
pub mod draft_head;
pub mod kv_q8;
pub mod ngram_drafter;
pub mod prefix_cache;
pub mod weights_q8;

use crit_kernels::plugin::Plugin;

/// All entries, by name in ascending order.
pub const CATALOG: &[Plugin] = &[
    cuda_early_start::PLUGIN,
    cuda_flash_prefill::PLUGIN,
    cuda_fused_gate::PLUGIN,
    cuda_fused_heads::PLUGIN,
    cuda_fused_norm::PLUGIN,
    cuda_fused_residual::PLUGIN,
    cuda_graph_step::PLUGIN,
    cuda_merged_projections::PLUGIN,
    cuda_split_decode::PLUGIN,
    cuda_stream_gemv::PLUGIN,
    draft_head::PLUGIN,
    kv_q8::PLUGIN,
    ngram_drafter::PLUGIN,
    prefix_cache::PLUGIN,
    weights_q8::PLUGIN,
];
