//! Mamba-2 mixers from configs with `mamba_*` keys: bamba, falcon_h1, granitemoehybrid.

use super::hybrid::{conv_shape, divides};
use super::parts::mamba::{Mixer, OutputNorm};
use super::{ArchError, Source};
use crate::model::program::ops::mamba2::Mamba2;
use serde_json::Value;

/// The mixer of a config; its tensors are called `mamba.*` in a layer.
///
/// # Errors
/// A key is missing or wrong, or sizes do not fit each other.
pub(super) fn mixer(source: &Source<'_>, inner: usize, norm: OutputNorm) -> Result<Mixer, ArchError> {
    let config = source.config;
    let hidden = config.positive("hidden_size")?;
    let heads = config.usize_or("mamba_n_heads", 128)?.max(1);
    divides("mamba_n_heads", inner, "the heads", heads)?;
    let (dt_min, dt_max) = step_limits(source)?;
    let scan = Mamba2 {
        heads,
        head_dim: inner / heads,
        groups: config.usize_or("mamba_n_groups", 1)?.max(1),
        state_dim: config.usize_or("mamba_d_state", 256)?.max(1),
        dt_min,
        dt_max,
        a_is_rate: source.storage.decay_as_rate,
    };
    divides("mamba_n_heads", heads, "mamba_n_groups", scan.groups)?;
    let kernel = config.usize_or("mamba_d_conv", 4)?.max(1);
    Ok(Mixer {
        hidden,
        kernel,
        conv_bias: config.bool_or("mamba_conv_bias", true)?,
        bias: config.bool_or("mamba_proj_bias", false)?,
        conv_stored: conv_shape(source, "mamba.conv1d.weight", inner + 2 * scan.shared(), kernel),
        norm,
        eps: config.f64_or("rms_norm_eps", 1e-5)? as f32,
        multipliers: [1.0; 5],
        scan,
    })
}

/// Elements of all heads: `mamba_expand` times the residual's width.
pub(super) fn expanded(source: &Source<'_>) -> Result<usize, ArchError> {
    let (hidden, expand) = (source.config.positive("hidden_size")?, source.config.f64_or("mamba_expand", 2.0)?);
    let inner = hidden as f64 * expand;
    if !(1.0..1e9).contains(&inner) {
        let why = format!("{expand} times {hidden} is no width");
        return Err(ArchError::Value { key: "mamba_expand".into(), why });
    }
    Ok(inner as usize)
}

/// `time_step_limit`, whose upper end is usually infinity, which JSON cannot say.
fn step_limits(source: &Source<'_>) -> Result<(f32, f32), ArchError> {
    let Some(limits) = source.config.get("time_step_limit") else { return Ok((0.0, f32::INFINITY)) };
    let wrong = || ArchError::Value { key: "time_step_limit".into(), why: format!("{limits} is not two bounds") };
    let bound = |i: usize| match limits.get(i) {
        Some(Value::Number(number)) => number.as_f64().map(|n| n as f32),
        // transformers writes infinity as {"__float__": "Infinity"}; other writers leave null or a word.
        Some(_) if i == 1 => Some(f32::INFINITY),
        _ => None,
    };
    match (bound(0), bound(1)) {
        (Some(low), Some(high)) if low <= high => Ok((low, high)),
        _ => Err(wrong()),
    }
}
