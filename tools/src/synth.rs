//! Random checkpoints of a config's shapes.

use crate::context::Reporter;
use crate::error::ToolError;
use crit_core::error::ErrorKind;
use crit_core::export::{self, Number, SynthOptions, Target};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// A synthetic checkpoint in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Synthesised {
    /// The folder or file.
    pub out: String,
    /// `safetensors` or `gguf`.
    pub container: String,
    /// Tensors.
    pub tensors: u64,
    /// Weights in all.
    pub parameters: u64,
    /// Bytes of the files with weights.
    pub bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What it is not good for.
    pub note: String,
}

/// The container called `name`; what `out` ends with decides if there is none.
///
/// # Errors
/// Another name.
pub fn target(name: Option<&str>, out: &Path) -> Result<Target, ToolError> {
    match name {
        Some("safetensors") => Ok(Target::Safetensors),
        Some("gguf") => Ok(Target::Gguf),
        None if out.extension().is_some_and(|end| end == "gguf") => Ok(Target::Gguf),
        None => Ok(Target::Safetensors),
        Some(other) => {
            Err(ToolError::new(ErrorKind::Usage, format!("`{other}` is no container; give safetensors or gguf")))
        }
    }
}

/// The element type called `name`.
///
/// # Errors
/// Another name.
pub fn number(name: &str) -> Result<Number, ToolError> {
    match name {
        "bf16" => Ok(Number::Bf16),
        "f16" => Ok(Number::F16),
        "f32" => Ok(Number::F32),
        other => Err(ToolError::new(
            ErrorKind::Usage,
            format!("`{other}` is no element type to write; give bf16, f16 or f32"),
        )),
    }
}

/// Writes a random checkpoint of the config at `config` to `out`.
///
/// # Errors
/// A configuration of no supported family, something at `out`, or a file that cannot be written.
pub fn synth(
    config: &Path,
    out: &Path,
    options: &SynthOptions,
    report: &dyn Reporter,
) -> Result<Synthesised, ToolError> {
    let started = Instant::now();
    let written = export::synth(config, out, options, &|done, total| report.progress(done, total))?;
    Ok(Synthesised {
        out: out.display().to_string(),
        container: match options.target {
            Target::Safetensors => "safetensors".into(),
            Target::Gguf => "gguf".into(),
        },
        tensors: written.tensors as u64,
        parameters: written.parameters,
        bytes: written.bytes,
        seconds: started.elapsed().as_secs_f64(),
        note: "random weights, marked synthetic: good for speed, refused by quality gates".into(),
    })
}
