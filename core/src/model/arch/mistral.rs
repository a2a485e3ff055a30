//! mistral: llama with a window on every layer, if the config names one.
//!
//! Reference: transformers `models/mistral/modeling_mistral.py`; Jiang et al. 2023, arXiv:2310.06825.

use super::dense::{Dense, LayerKind};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "mistral", model_types: &["mistral"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let mut dense = Dense::from_config("mistral", source)?;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    // A file that does not mention a window means the class's default; one that says null means none.
    let window = match source.config.map().contains_key("sliding_window") {
        true => source.config.opt_usize("sliding_window")?,
        false => Some(4096),
    };
    dense.kinds = vec![LayerKind { name: "layer", rope, window, experts: false }];
    dense.program(source)
}
