//! What an engine on the GPU may do beyond its base kernels, each to be switched on and off.

/// A way to be faster. All keep within the rounding of their number formats what the base computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// A kernel is set up while the one before it ends (programmatic dependent launch).
    EarlyStart,
    /// Prompts attend in tiles on the tensor cores.
    FlashPrefill,
    /// Gate, up and activation of an MLP in one pass through the weights.
    FusedGate,
    /// Norms, rotation and cache writes of all heads in one kernel.
    FusedHeads,
    /// The norm before a projection is computed by the projection.
    FusedNorm,
    /// A projection adds to the residual stream.
    FusedResidual,
    /// A decode step is one captured graph.
    GraphStep,
    /// Projections of one input are one matrix.
    MergedProjections,
    /// Few tokens attend in splits of their context on the tensor cores.
    SplitDecode,
    /// Weights stream through shared memory by bulk copies.
    StreamGemv,
}

impl Strategy {
    /// All, by name in ascending order.
    pub const ALL: &[(&str, Self)] = &[
        ("cuda_early_start", Self::EarlyStart),
        ("cuda_flash_prefill", Self::FlashPrefill),
        ("cuda_fused_gate", Self::FusedGate),
        ("cuda_fused_heads", Self::FusedHeads),
        ("cuda_fused_norm", Self::FusedNorm),
        ("cuda_fused_residual", Self::FusedResidual),
        ("cuda_graph_step", Self::GraphStep),
        ("cuda_merged_projections", Self::MergedProjections),
        ("cuda_split_decode", Self::SplitDecode),
        ("cuda_stream_gemv", Self::StreamGemv),
    ];

    /// Its name, which is that of its catalogue entry.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, strategy)| *strategy == self).map_or("", |(name, _)| name)
    }
}
