//! The SDK: the sources an engine package is built against, embedded in the executable and unpacked on demand.
//!
//! It lies in `.crit/sdk/<digest>/`, a Cargo workspace of core, kernels and catalogue with crit's own lock file. The
//! digest is over paths and contents, so an engine says exactly what it was built against, and two versions of crit
//! can work on one workspace. Unpacking needs no network and is atomic; what is there already is compared byte by byte.

use crit_core::digest::Digest;
use crit_core::error::{Diagnose, ErrorKind};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/sdk_files.rs"));

/// Why the SDK is not there.
#[derive(Debug, thiserror::Error)]
#[error("unpacking the SDK to {}", path.display())]
pub struct SdkError {
    /// Where to.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

impl Diagnose for SdkError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Environment
    }

    fn hint(&self) -> Option<String> {
        Some("make sure the workspace is writable and its disk is not full".into())
    }
}

/// SHA-256 over the SDK's paths and contents.
pub fn digest() -> Digest {
    static DIGEST: OnceLock<Digest> = OnceLock::new();
    *DIGEST.get_or_init(|| Digest::of_parts(FILES.iter().flat_map(|(path, bytes)| [path.as_bytes(), *bytes])))
}

/// Where the SDK lies in `workspace`, there or not.
pub fn path(workspace: &Path) -> PathBuf {
    workspace.join(".crit/sdk").join(digest().to_string())
}

/// Makes sure the SDK lies in `workspace`, whole and unchanged, and returns where.
///
/// # Errors
/// The disk says no.
pub fn unpack(workspace: &Path) -> Result<PathBuf, SdkError> {
    let home = path(workspace);
    let fail = |source| SdkError { path: home.clone(), source };
    if is_whole(&home) {
        return Ok(home);
    }
    let parent = workspace.join(".crit/sdk");
    fs::create_dir_all(&parent).map_err(fail)?;
    let fresh = parent.join(format!(".new-{}", std::process::id()));
    remove(&fresh).and_then(|()| write_all(&fresh)).map_err(fail)?;
    if home.exists() {
        // Somebody changed it: put it aside in one move, so that no build ever sees half of it.
        let aside = parent.join(format!(".old-{}", std::process::id()));
        remove(&aside).and_then(|()| fs::rename(&home, &aside)).and_then(|()| remove(&aside)).map_err(fail)?;
    }
    match fs::rename(&fresh, &home) {
        Ok(()) => Ok(home),
        // Another process was first.
        Err(_) if is_whole(&home) => remove(&fresh).map(|()| home.clone()).map_err(fail),
        Err(error) => Err(fail(error)),
    }
}

fn write_all(home: &Path) -> io::Result<()> {
    for (path, bytes) in FILES {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap_or(home))?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether exactly the SDK's files lie under `home`.
fn is_whole(home: &Path) -> bool {
    let mut found = BTreeSet::new();
    if list(home, home, &mut found).is_err() || found.len() != FILES.len() {
        return false;
    }
    FILES
        .iter()
        .all(|(path, bytes)| found.contains(*path) && fs::read(home.join(path)).is_ok_and(|read| read == *bytes))
}

fn list(home: &Path, at: &Path, out: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(at)? {
        let path = entry?.path();
        if path.is_dir() {
            list(home, &path, out)?;
        } else if let Ok(path) = path.strip_prefix(home) {
            out.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_once_and_mends_what_was_changed() {
        let workspace = tempfile::tempdir().unwrap();
        let home = unpack(workspace.path()).unwrap();
        let file = home.join("core/src/lib.rs");
        let before = fs::metadata(&file).unwrap().modified().unwrap();
        unpack(workspace.path()).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before, "an SDK that is whole is left alone");
        fs::write(&file, "// changed").unwrap();
        fs::write(home.join("core/src/extra.rs"), "").unwrap();
        unpack(workspace.path()).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("pub mod plugin"));
        assert!(!home.join("core/src/extra.rs").exists());
        assert_eq!(fs::read_dir(workspace.path().join(".crit/sdk")).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn its_manifest_has_the_three_packages_and_nothing_of_the_server_or_the_store() {
        let manifest = FILES.iter().find(|(path, _)| *path == "Cargo.toml").unwrap().1;
        let manifest = std::str::from_utf8(manifest).unwrap();
        assert!(manifest.contains(r#"members = ["core", "inference-catalog", "kernels"]"#), "{manifest}");
        for banned in ["git2", "tantivy", "rmcp", "axum", "crit-tools", "crit-eval"] {
            assert!(!manifest.contains(banned), "the SDK names {banned}");
        }
        assert!(manifest.contains("[profile.release]") && manifest.contains("thiserror"));
    }
}
