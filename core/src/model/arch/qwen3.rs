//! qwen3: llama with a norm on every query and key head; the last layers may use a window.
//!
//! Reference: transformers `models/qwen3/modeling_qwen3.py`; Qwen team 2025, arXiv:2505.09388.

use super::dense::{Dense, LayerKind};
use super::rope::{OldKeys, table};
use super::{ArchError, Family, Source};
use crate::model::program::Program;

/// The family.
pub const FAMILY: Family = Family { name: "qwen3", model_types: &["qwen3"], program };

fn program(source: &Source<'_>) -> Result<Program, ArchError> {
    let config = source.config;
    let mut dense = Dense::from_config("qwen3", source)?;
    dense.qk_norm = true;
    let old = OldKeys { theta: "rope_theta", default_theta: 10_000.0, scaled: true };
    let rope = table(source, "full_attention", dense.head_dim, &old)?;
    dense.kinds = vec![LayerKind { name: "layer", rope: Some(rope.clone()), window: None }];
    if config.bool_or("use_sliding_window", false)? {
        let window = config.usize_or("sliding_window", 4096)?;
        let first = config.usize_or("max_window_layers", 28)?;
        dense.kinds.push(LayerKind { name: "layer.window", rope: Some(rope), window: Some(window) });
        dense.layers.iter_mut().enumerate().skip(first).for_each(|(_, kind)| *kind = 1);
    }
    dense.program(source)
}
