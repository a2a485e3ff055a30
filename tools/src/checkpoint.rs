//! The digest of a checkpoint, kept as long as its files have the same sizes and times.

use crate::context::Context;
use crate::error::ToolError;
use crit_core::digest::Digest;
use crit_core::files::Checkpoint;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

#[derive(Serialize, Deserialize)]
struct Kept {
    stamps: Vec<Stamp>,
    digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    file: PathBuf,
    bytes: u64,
    modified_ns: String,
}

/// The digest of the checkpoint at `path`: over the names, sizes and contents of all its files. Reading gigabytes takes
/// seconds, so it is kept in the workspace; a file whose size or time changed is read again.
///
/// # Errors
/// The checkpoint cannot be read.
pub fn digest(context: &Context, path: &Path) -> Result<Digest, ToolError> {
    let checkpoint = Checkpoint::open(path)?;
    let kept = context.try_workspace().map(|workspace| {
        let key = Digest::of(checkpoint.path().as_os_str().as_encoded_bytes()).short();
        workspace.cache().join(format!("checkpoint-{key}.json"))
    });
    if let Some(kept) = &kept
        && let Some(known) = read(kept)
        && !known.stamps.is_empty()
        && known.stamps.iter().all(|stamp| stamp_of(&stamp.file).as_ref() == Some(stamp))
    {
        return Ok(known.digest);
    }
    let manifest = checkpoint.manifest()?;
    if let Some(kept) = kept {
        let folder = if checkpoint.path().is_dir() {
            checkpoint.path().to_path_buf()
        } else {
            checkpoint.path().parent().unwrap_or(Path::new(".")).to_path_buf()
        };
        let stamps: Vec<Stamp> = manifest.files.iter().filter_map(|file| stamp_of(&folder.join(&file.name))).collect();
        if stamps.len() == manifest.files.len() {
            let known = Kept { stamps, digest: manifest.digest };
            // Without it the next call reads the files again; nothing else is lost.
            let _ = serde_json::to_vec(&known).map(|text| std::fs::write(&kept, text));
        }
    }
    Ok(manifest.digest)
}

fn read(path: &Path) -> Option<Kept> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn stamp_of(file: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(file).ok()?;
    let modified = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Stamp { file: file.into(), bytes: meta.len(), modified_ns: modified.as_nanos().to_string() })
}
