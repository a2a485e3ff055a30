//! A checkpoint written again in another form.

use crate::context::Reporter;
use crate::error::ToolError;
use crit_core::error::{ErrorKind, nearest};
use crit_core::export::{self, QuantizeOptions, SCHEMES, Scheme};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// A quantised checkpoint in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Quantised {
    /// The folder or file.
    pub out: String,
    /// `safetensors` or `gguf`.
    pub container: String,
    /// The scheme.
    pub scheme: String,
    /// Bytes of the files with weights.
    pub bytes: u64,
    /// Tensors by how they are stored.
    pub tensors: BTreeMap<String, u64>,
    /// Largest relative root mean square error of a tensor, and which.
    pub largest_error: f64,
    /// The tensor with it.
    pub largest_error_tensor: String,
    /// Seconds it took.
    pub seconds: f64,
}

/// The scheme called `name`.
///
/// # Errors
/// Another name.
pub fn scheme(name: &str) -> Result<&'static Scheme, ToolError> {
    Scheme::find(name).ok_or_else(|| {
        let known: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.name).collect();
        let error = ToolError::new(ErrorKind::Usage, format!("`{name}` is nothing to quantise to"));
        match nearest(&name.to_lowercase(), known.iter().copied()) {
            Some(near) => error.with_hint(format!("did you mean `{near}`? All: {}", known.join(" "))),
            None => error.with_hint(format!("give one of: {}", known.join(" "))),
        }
    })
}

/// Writes the checkpoint at `model` to `out` as `scheme` says.
///
/// # Errors
/// A model that cannot be read or that the scheme cannot hold, something at `out`, or a file that cannot be written.
pub fn quantize(
    model: &Path,
    scheme: &Scheme,
    out: &Path,
    options: &QuantizeOptions,
    report: &dyn Reporter,
) -> Result<Quantised, ToolError> {
    let started = Instant::now();
    let made = export::quantize(model, scheme, out, options, &|done, total| report.progress(done, total))?;
    let mut tensors = BTreeMap::new();
    for note in &made.tensors {
        *tensors.entry(note.stored.clone()).or_default() += 1;
    }
    let worst = made.tensors.iter().max_by(|a, b| a.relative_error.total_cmp(&b.relative_error));
    Ok(Quantised {
        out: out.display().to_string(),
        container: scheme.container().into(),
        scheme: scheme.name.into(),
        bytes: made.bytes,
        tensors,
        largest_error: worst.map_or(0.0, |note| note.relative_error),
        largest_error_tensor: worst.map(|note| note.name.clone()).unwrap_or_default(),
        seconds: started.elapsed().as_secs_f64(),
    })
}
