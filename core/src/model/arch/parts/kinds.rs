//! Which kind each layer is of, from a config.

use super::super::builder::ProgramBuilder;
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

/// For each layer the earlier layer whose keys and values it uses: the last of its kind that has its own, for the last
/// `num_kv_shared_layers` layers.
///
/// # Errors
/// A layer with nothing to share.
pub(crate) fn owners(source: &Source<'_>, kinds: &[usize], default: usize) -> Result<Vec<Option<usize>>, ArchError> {
    const KEY: &str = "num_kv_shared_layers";
    let own = kinds.len().saturating_sub(source.config.usize_or(KEY, default)?);
    let owner = |layer: usize| match layer < own {
        true => Ok(None),
        false => {
            kinds[..own].iter().rposition(|kind| *kind == kinds[layer]).map(Some).ok_or_else(|| ArchError::Value {
                key: KEY.into(),
                why: format!("layer {layer} has no earlier layer of its kind to share with"),
            })
        }
    };
    (0..kinds.len()).map(owner).collect()
}

/// Lets plain decoding ignore the maps that layers without keys and values of their own still have in some files.
pub(crate) fn skip_shared(builder: &mut ProgramBuilder, owners: &[Option<usize>]) {
    for (layer, _) in owners.iter().enumerate().filter(|(_, owner)| owner.is_some()) {
        for map in ["k_proj", "v_proj", "k_norm", "v_norm"] {
            builder.skip(format!("model.layers.{layer}.self_attn.{map}."));
        }
    }
}
