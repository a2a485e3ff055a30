//! Parts of layers that families share: functions that write ops into a block.
//!
//! A part knows nothing of a family: it takes sizes, names below the block's prefix, and the values it reads and
//! writes. A family strings parts together and writes what is its own between them.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod gated_attention;
pub(crate) mod kinds;
pub(crate) mod latent;
pub(crate) mod mamba;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod per_layer;
pub(crate) mod shared_expert;
pub(crate) mod stream;

pub(crate) use attention::{Attend, AttentionShape, AttentionValues, NormOver};
pub(crate) use delta::{DeltaNet, DeltaValues};
pub(crate) use gated_attention::{GatedAttention, GatedAttentionValues};
pub(crate) use mlp::{Mlp, MlpValues};
pub(crate) use norm::Norm;
