//! The layers of a file behind the model's own: a drafting head, under the names that Hugging Face checkpoints give it.

use super::{Source, Tensors};

/// Names that only a drafting head has.
const NAMES: &[(&str, &str)] = &[
    ("nextn.eh_proj.weight", "mtp.fc.weight"),
    ("nextn.embed_tokens.weight", "mtp.embed_tokens.weight"),
    ("nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
    ("nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
    ("nextn.shared_head_norm.weight", "mtp.norm.weight"),
];

/// Renames what belongs to layers behind the model's own. Where the head is not `usable`, its parts keep the names they
/// have, under `mtp.`, which the model leaves out.
pub(super) fn gather(source: &Source<'_>, tensors: &mut Tensors, usable: bool) {
    let Some(trunk) = source.layers() else { return };
    let behind = |name: &str| {
        let rest = name.strip_prefix("model.layers.").or_else(|| name.strip_prefix("blk."))?;
        let (layer, rest) = rest.split_once('.')?;
        let layer = layer.parse::<u64>().ok()?.checked_sub(trunk)?;
        let own = NAMES.iter().find(|(stored, _)| *stored == rest).filter(|_| usable);
        Some(own.map_or_else(|| format!("mtp.layers.{layer}.{rest}"), |(_, plain)| (*plain).to_string()))
    };
    let renamed: Vec<_> = tensors.keys().filter_map(|name| Some((name.clone(), behind(name)?))).collect();
    for (name, plain) in renamed {
        if let Some(tensor) = tensors.remove(&name) {
            tensors.insert(plain.clone(), tensor.renamed(&plain));
        }
    }
}
