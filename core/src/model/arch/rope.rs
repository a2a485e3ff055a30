//! RoPE tables from a config, in both dialects: `rope_parameters` (flat, or one dict per layer type) and the older
//! `rope_theta` + `rope_scaling`.
//!
//! Kinds: default, linear, proportional (the slowest pairs of a head stand still), llama3, yarn (Peng et al. 2023, arXiv:2309.00071), longrope (Ding et al. 2024,
//! arXiv:2402.13753), and dynamic, which up to the claimed context is the default.

use super::{ArchError, Source};
use crate::json::Config;
use crate::model::program::ops::rope::LongRope;
use std::f64::consts::PI;
use std::sync::Arc;

/// Angles a position for each rotating pair, and the factor on cos and sin.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians a position, `[rotary_dim / 2]`.
    pub inv_freq: Arc<[f32]>,
    /// Factor on cos and sin.
    pub magnitude: f32,
    /// Other angles for long sequences.
    pub long: Option<LongRope>,
}

/// Where a layer type finds its base and its scaling in the older dialect.
pub struct OldKeys<'a> {
    /// Key of the base frequency: `rope_theta`, `rope_local_base_freq`.
    pub theta: &'a str,
    /// Base when the key is absent.
    pub default_theta: f64,
    /// Whether `rope_scaling` applies.
    pub scaled: bool,
}

/// The table of the layers of `layer_type` (the key of the newer dialect's nested form), rotating the first
/// `rotary_dim` elements of a head.
///
/// # Errors
/// A key is missing or wrong, or the kind is not supported.
pub fn table(
    source: &Source<'_>,
    layer_type: &str,
    rotary_dim: usize,
    old: &OldKeys<'_>,
) -> Result<RopeTable, ArchError> {
    let config = source.config;
    let max_context = config.usize_or("max_position_embeddings", 2048)? as f64;
    let (theta, scaling) = match config.opt_object("rope_parameters")? {
        Some(parameters) => {
            let own = parameters.opt_object(layer_type)?.unwrap_or(parameters);
            (own.f64_or("rope_theta", config.f64_or(old.theta, old.default_theta)?)?, Some(own))
        }
        None => {
            let scaling = if old.scaled { config.opt_object("rope_scaling")? } else { None };
            (config.f64_or(old.theta, old.default_theta)?, scaling)
        }
    };
    if !(theta.is_finite() && theta > 0.0) {
        return Err(value(old.theta, format!("the base must be positive, not {theta}")));
    }
    let base: Vec<f64> = (0..rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    if let Some(scaling) = &scaling
        && kind(scaling)? == "longrope"
    {
        return longrope(config, scaling, &base, max_context);
    }
    let (mut freq, magnitude) = match scaling {
        None => (base, 1.0),
        Some(scaling) => scaled(&scaling, base, rotary_dim, theta, max_context)?,
    };
    if let Some(factors) = (source.tensor)("rope_freqs.weight") {
        let mut divide = vec![0.0; factors.row_len()];
        factors.dequant_rows(0..1, &mut divide)?;
        freq.iter_mut().zip(&divide).for_each(|(f, d)| *f /= f64::from(*d));
    }
    Ok(RopeTable { inv_freq: freq.iter().map(|f| *f as f32).collect(), magnitude: magnitude as f32, long: None })
}

/// Elements of a head that rotate, the first ones: `partial_rotary_factor` of them, wherever the config has it.
///
/// # Errors
/// A share outside 0 to 1.
pub fn rotary_dim(source: &Source<'_>, layer_type: &str, head_dim: usize, default: f64) -> Result<usize, ArchError> {
    const KEY: &str = "partial_rotary_factor";
    let mut share = source.config.f64_or(KEY, default)?;
    if let Some(parameters) = source.config.opt_object("rope_parameters")? {
        share = parameters.opt_object(layer_type)?.unwrap_or(parameters).f64_or(KEY, share)?;
    }
    if !(share > 0.0 && share <= 1.0) {
        return Err(value(KEY, format!("must lie in (0, 1], not {share}")));
    }
    Ok((head_dim as f64 * share) as usize)
}

fn kind(scaling: &Config) -> Result<&str, ArchError> {
    Ok(scaling.opt_str("rope_type")?.or(scaling.opt_str("type")?).unwrap_or("default"))
}

/// Divisors a pair for sequences up to the original context, and others beyond it.
fn longrope(config: &Config, scaling: &Config, base: &[f64], max_context: f64) -> Result<RopeTable, ArchError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let divided = |key: &str| -> Result<Arc<[f32]>, ArchError> {
        let factors = scaling.opt_f64_list(key)?.unwrap_or_default();
        if factors.len() != base.len() {
            return Err(value(key, format!("{} factors for {} rotating pairs", factors.len(), base.len())));
        }
        Ok(base.iter().zip(&factors).map(|(f, d)| (f / d) as f32).collect())
    };
    let original = config.f64_or(ORIGINAL, scaling.f64_or(ORIGINAL, max_context)?)?;
    if !(original.is_finite() && original > 1.0) {
        return Err(value(ORIGINAL, format!("must be more than 1, not {original}")));
    }
    let stretch = if config.has(ORIGINAL) { max_context / original } else { scaling.f64_or("factor", 1.0)? };
    let default = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
    Ok(RopeTable {
        inv_freq: divided("short_factor")?,
        magnitude: scaling.f64_or("attention_factor", default)? as f32,
        long: Some(LongRope { above: original as usize, inv_freq: divided("long_factor")? }),
    })
}

fn value(key: &str, why: impl Into<String>) -> ArchError {
    ArchError::Value { key: key.into(), why: why.into() }
}

fn positive(config: &Config, key: &str, default: Option<f64>) -> Result<f64, ArchError> {
    let found = match default {
        Some(default) => config.f64_or(key, default)?,
        None => config.f64(key)?,
    };
    if found.is_finite() && found > 0.0 { Ok(found) } else { Err(value(key, format!("must be positive, not {found}"))) }
}

fn scaled(
    scaling: &Config,
    base: Vec<f64>,
    rotary_dim: usize,
    theta: f64,
    max_context: f64,
) -> Result<(Vec<f64>, f64), ArchError> {
    match kind(scaling)? {
        "dynamic" if scaling.has("alpha") => {
            let dim = rotary_dim as f64;
            let theta = theta * positive(scaling, "alpha", None)?.powf(dim / (dim - 2.0));
            Ok(((0..base.len()).map(|i| theta.powf(-2.0 * i as f64 / dim)).collect(), 1.0))
        }
        // Dynamic scaling sets in past the context that `max_position_embeddings` claims.
        "default" | "dynamic" => Ok((base, 1.0)),
        "linear" => {
            let factor = positive(scaling, "factor", None)?;
            Ok((base.iter().map(|f| f / factor).collect(), 1.0))
        }
        "llama3" => Ok((llama3(scaling, &base, max_context)?, 1.0)),
        "proportional" => {
            let share = scaling.f64_or("partial_rotary_factor", 1.0)?;
            let factor = positive(scaling, "factor", Some(1.0))?;
            let turning = (share * rotary_dim as f64 / 2.0) as usize;
            let angle = |(i, f): (usize, &f64)| if i < turning { f / factor } else { 0.0 };
            Ok((base.iter().enumerate().map(angle).collect(), 1.0))
        }
        "yarn" => yarn(scaling, &base, rotary_dim, theta, max_context),
        other => Err(value(
            "rope_type",
            format!(
                "`{other}` is not supported; supported are default, dynamic, linear, llama3, longrope, proportional, yarn"
            ),
        )),
    }
}

fn llama3(scaling: &Config, base: &[f64], max_context: f64) -> Result<Vec<f64>, ArchError> {
    let factor = positive(scaling, "factor", None)?;
    let low = positive(scaling, "low_freq_factor", Some(1.0))?;
    let high = positive(scaling, "high_freq_factor", Some(4.0))?;
    let original = positive(scaling, "original_max_position_embeddings", Some(max_context))?;
    Ok(base
        .iter()
        .map(|f| {
            let wavelength = 2.0 * PI / f;
            if wavelength > original / low {
                f / factor
            } else if wavelength < original / high {
                *f
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * f / factor + smooth * f
            }
        })
        .collect())
}

fn yarn(
    scaling: &Config,
    base: &[f64],
    rotary_dim: usize,
    theta: f64,
    max_context: f64,
) -> Result<(Vec<f64>, f64), ArchError> {
    let original = positive(scaling, "original_max_position_embeddings", Some(max_context))?;
    let factor = positive(scaling, "factor", Some(max_context / original))?;
    let fast = positive(scaling, "beta_fast", Some(32.0))?;
    let slow = positive(scaling, "beta_slow", Some(1.0))?;
    let turns_at = |turns: f64| rotary_dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (turns_at(fast), turns_at(slow));
    if scaling.bool_or("truncate", true)? {
        (low, high) = (low.floor(), high.ceil());
    }
    let last = rotary_dim as f64 - 1.0;
    (low, high) = (low.max(0.0), high.min(last));
    if low == high {
        high += 0.001;
    }
    let freq = base
        .iter()
        .enumerate()
        .map(|(i, f)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        })
        .collect();
    Ok((freq, yarn_magnitude(scaling, factor)?))
}

fn yarn_magnitude(scaling: &Config, factor: f64) -> Result<f64, ArchError> {
    let magnitude = |k: f64| if factor <= 1.0 { 1.0 } else { 0.1 * k * factor.ln() + 1.0 };
    let (scale, scale_all) = (scaling.f64_or("mscale", 0.0)?, scaling.f64_or("mscale_all_dim", 0.0)?);
    let default =
        if scale != 0.0 && scale_all != 0.0 { magnitude(scale) / magnitude(scale_all) } else { magnitude(1.0) };
    Ok(scaling.f64_or("attention_factor", default)?)
}
