//! olmo3: olmo2 with windows on three of four layers; scaled rotary positions on full layers only.
//!
//! Reference: transformers `models/olmo3/modeling_olmo3.py`.

use super::dense::{Dense, NormOver, POST_NORMS};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "olmo3", model_types: &["olmo3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("olmo3", source)?;
    dense.norms = POST_NORMS;
    dense.qk_norm = Some(NormOver::All);
    let old = |scaled| OldKeys { theta: "rope_theta", default_theta: 500_000.0, scaled };
    let ropes = (
        Some(table(source, "full_attention", dense.head_dim, &old(true))?),
        Some(table(source, "sliding_attention", dense.head_dim, &old(false))?),
    );
    dense.window_layers(source, ropes, |i| (i + 1) % 4 != 0)?;
    dense.program(source)
}
