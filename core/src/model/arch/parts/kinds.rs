//! Which kind each layer is of, from a config.

use super::super::{ArchError, Source};

/// Kind of each layer as an index into `names`: the list under `key`, or what `default` says of a layer.
///
/// # Errors
/// A list of another length than there are layers, or a name that is not in `names`.
pub(crate) fn kinds(
    source: &Source<'_>,
    key: &str,
    names: &[&str],
    layers: usize,
    default: impl Fn(usize) -> usize,
) -> Result<Vec<usize>, ArchError> {
    let wrong = |why: String| ArchError::Value { key: key.into(), why };
    let Some(given) = source.config.opt_str_list(key)? else { return Ok((0..layers).map(default).collect()) };
    if given.len() != layers {
        return Err(wrong(format!("{} entries for {layers} layers", given.len())));
    }
    let find = |kind: &String| names.iter().position(|name| name == kind);
    given
        .iter()
        .map(|kind| find(kind).ok_or_else(|| wrong(format!("`{kind}` is none of {}", names.join(", ")))))
        .collect()
}

/// Which layers have rotary positions: `no_rope_layers`, in which a 1 means that a layer has them, else all but every
/// `no_rope_layer_interval`-th.
///
/// # Errors
/// A list of another length than there are layers.
pub(crate) fn rope_layers(source: &Source<'_>, layers: usize, interval: usize) -> Result<Vec<bool>, ArchError> {
    let interval = source.config.usize_or("no_rope_layer_interval", interval)?.max(1);
    match source.config.opt_usize_list("no_rope_layers")?.filter(|given| !given.is_empty()) {
        None => Ok((0..layers).map(|i| (i + 1) % interval != 0).collect()),
        Some(given) if given.len() == layers => Ok(given.iter().map(|flag| *flag != 0).collect()),
        Some(given) => Err(ArchError::Value {
            key: "no_rope_layers".into(),
            why: format!("{} entries for {layers} layers", given.len()),
        }),
    }
}
