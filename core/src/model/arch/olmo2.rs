//! olmo2: llama with norms after the sublayers instead of before, and on whole query and key projections.
//!
//! Reference: transformers `models/olmo2/modeling_olmo2.py`; OLMo team 2025, arXiv:2501.00656.

use super::dense::{Dense, LayerKind, NormOver, POST_NORMS};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "olmo2", model_types: &["olmo2"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("olmo2", source)?;
    dense.norms = POST_NORMS;
    dense.qk_norm = Some(NormOver::All);
    let old = OldKeys { theta: "rope_theta", default_theta: 500_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    dense.kinds = vec![LayerKind { name: "layer", rope, window: None, experts: false }];
    dense.program(source)
}
