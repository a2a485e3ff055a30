//! smollm3: llama in which some layers have no rotary positions, and those may have a window.
//!
//! Reference: transformers `models/smollm3/modeling_smollm3.py`; Yang et al. 2025, arXiv:2501.18795 for layers without
//! positions. In `no_rope_layers` a 1 means that the layer has them.

use super::dense::{Dense, LayerKind};
use super::parts::kinds::{kinds, rope_layers};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "smollm3", model_types: &["smollm3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("smollm3", source)?;
    let old = OldKeys { theta: "rope_theta", default_theta: 2_000_000.0, scaled: true };
    let rope = Some(table(source, "full_attention", dense.head_dim, &old)?);
    let count = dense.layers.len();
    let turns = rope_layers(source, count, 4)?;
    let window = config.opt_usize("sliding_window")?;
    let on = config.bool_or("use_sliding_window", false)? && window.is_some();
    let names = ["full_attention", "sliding_attention"];
    let windowed = kinds(source, "layer_types", &names, count, |i| usize::from(on && !turns[i]))?;
    dense.kinds = vec![
        LayerKind { name: "layer", rope: rope.clone(), window: None, experts: false },
        LayerKind { name: "layer.nope", rope: None, window: None, experts: false },
        LayerKind { name: "layer.window", rope, window, experts: false },
        LayerKind { name: "layer.nope.window", rope: None, window, experts: false },
    ];
    dense.layers = (0..count).map(|i| usize::from(!turns[i]) + 2 * windowed[i]).collect();
    dense.program(source)
}
