//! The record of a transform that lies beside the weights it made.
//!
//! Canonical: sorted keys, no spaces, no floats. Whoever holds the source and this crit can make the same bytes again.

use crate::files::Manifest;
use serde_json::{Value, json};

/// Name of the record in a folder.
pub(super) const FILE: &str = "crit-transform.json";

/// What became of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorNote {
    /// Its name in the result.
    pub name: String,
    /// How it is stored.
    pub stored: String,
    /// Root mean square error over root mean square value.
    pub relative_error: f64,
}

/// The record's bytes.
pub(super) fn bytes(method: &str, source: &Manifest, tensors: &[TensorNote]) -> Vec<u8> {
    let tensors: Vec<Value> = tensors
        .iter()
        .map(|note| json!({"name": note.name, "stored": note.stored, "relative_rms_error": format!("{:.6}", note.relative_error)}))
        .collect();
    let mut record = json!({
        "crit_version": env!("CARGO_PKG_VERSION"),
        "kind": "crit.transform/1",
        "method": method,
        "source": {"digest": source.digest, "files": source.files},
        "tensors": tensors,
    });
    record.sort_all_objects();
    record.to_string().into_bytes()
}
