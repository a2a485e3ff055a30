//! The index of a checkpoint in several files: which shard holds which tensor. It is compared with the shards both ways.

use super::error::FileError;
use super::tensor::StoredTensor;
use crate::json::{self, Config, Limits};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Largest index that is read.
const MAX_BYTES: u64 = 100_000_000;

/// The tensors of all shards that the index at `path` names, read by `open_shard`, and the shards.
pub(super) fn open(
    path: &Path,
    open_shard: impl Fn(&Path) -> Result<Vec<StoredTensor>, FileError>,
) -> Result<(Vec<StoredTensor>, Vec<PathBuf>), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let shards = read_index(path)?;
    let (mut tensors, mut files) = (Vec::new(), Vec::new());
    for (shard, mut named) in shards {
        let file = folder.join(&shard);
        if !file.is_file() {
            return Err(damaged(path, format!("the shard `{shard}` that it names is not there")));
        }
        for tensor in open_shard(&file)? {
            if !named.remove(tensor.stored_name()) {
                let name = tensor.stored_name();
                return Err(damaged(path, format!("`{name}` lies in the shard `{shard}`, the index does not say so")));
            }
            tensors.push(tensor);
        }
        if let Some(name) = named.first() {
            return Err(damaged(
                path,
                format!("it says that `{name}` lies in the shard `{shard}`, which has no such tensor"),
            ));
        }
        files.push(file);
    }
    Ok((tensors, files))
}

/// Shards with the names of the tensors in them.
fn read_index(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, FileError> {
    let limits = Limits { max_bytes: MAX_BYTES, ..Limits::default() };
    let origin = path.display().to_string();
    let index = json::parse_within(&json::read_bounded(path, limits.max_bytes)?, &origin, limits)?;
    let index = Config::from_value(index, &origin)?;
    let map = match index.get("weight_map") {
        Some(Value::Object(map)) => map,
        _ => return Err(index.wrong("weight_map", "an object from tensor names to shard files").into()),
    };
    if map.is_empty() {
        return Err(damaged(path, "its `weight_map` is empty".into()));
    }
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().filter(|shard| is_plain_name(shard)).ok_or_else(|| {
            damaged(
                path,
                format!("`weight_map` puts `{tensor}` in {shard}, which is no file name in the model's folder"),
            )
        })?;
        shards.entry(shard.into()).or_default().insert(tensor.clone());
    }
    Ok(shards)
}

/// Whether `name` is the name of a file in the same folder and nothing else.
pub(super) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    // A backslash separates folders on one system and is a letter on another: no real shard has one.
    one && !name.contains(['/', '\\', ':', '\0'])
}

fn damaged(path: &Path, what: String) -> FileError {
    FileError::Damaged { path: path.into(), what }
}
