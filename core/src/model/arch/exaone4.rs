//! exaone4: norms after the sublayers, a norm on every query and key head; where layers are mixed, only those with a
//! window have rotary positions.
//!
//! Reference: transformers `models/exaone4/modeling_exaone4.py`; LG AI Research 2025, arXiv:2507.11407.

use super::dense::{Dense, NormOver, POST_NORMS};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "exaone4", model_types: &["exaone4"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("exaone4", source)?;
    dense.norms = POST_NORMS;
    dense.qk_norm = Some(NormOver::Head);
    let old = OldKeys { theta: "rope_theta", default_theta: 1_000_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    let mixed = config.opt_usize("sliding_window")?.is_some();
    let pattern = window_pattern(source)?;
    let full = Some(rope.clone()).filter(|_| !mixed);
    let last = dense.layers.len();
    dense.window_layers(source, (full, Some(rope)), |i| mixed && pattern(i, last))?;
    dense.program(source)
}

/// Whether a layer has a window where there is no `layer_types`: by `sliding_window_pattern`, a period of which the last
/// layer is full, or letters (`LLLG`) of which L is a window. The last layer of all is full in the lettered form.
fn window_pattern(source: &Source<'_>) -> Result<impl Fn(usize, usize) -> bool, ArchError> {
    let letters = match source.config.get("sliding_window_pattern") {
        Some(serde_json::Value::String(letters)) if !letters.is_empty() => Some(letters.clone().into_bytes()),
        _ => None,
    };
    let period = if letters.is_some() { 4 } else { source.config.usize_or("sliding_window_pattern", 4)?.max(1) };
    Ok(move |i: usize, layers: usize| match &letters {
        Some(letters) => letters[i % letters.len()] == b'L' && i + 1 != layers,
        None => !(i + 1).is_multiple_of(period),
    })
}
