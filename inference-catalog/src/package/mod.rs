//! An engine package: `engine/` of a workspace as a Cargo package with plugins of its own.
//!
//! ```text
//! engine/
//!   engine.json            the assembly
//!   Cargo.toml             depends on the SDK in .crit/sdk/<digest>/
//!   src/main.rs            hands the list to the engine host
//!   plugins/mod.rs         the list, sorted, written by this module
//!   plugins/<name>/        README.md, entry.json, plugin.json, mod.rs, …
//! ```
//!
//! Plugins come from the catalogue ([`add`]) or from a template ([`new`]); a plugin with a catalogue entry's name takes
//! that entry's place. Building and testing call Cargo, offline if all crates are there, with one target folder for
//! the workspace.

mod cargo;
mod check;
mod error;
mod folder;
mod template;

pub use cargo::{Built, Tested, build, test};
pub use check::{Checked, check};
pub use error::PackageError;
pub use folder::{OwnPlugin, plugins};

use crate::{CATALOG, sdk};
use crit_core::error::nearest;
use std::fs;
use std::path::{Path, PathBuf};

/// The package's folder in a workspace.
pub fn root(workspace: &Path) -> PathBuf {
    workspace.join("engine")
}

/// Whether the workspace has an engine package (and not only an assembly).
pub fn exists(workspace: &Path) -> bool {
    root(workspace).join("Cargo.toml").is_file()
}

/// Makes a plugin of one's own from the template, and the package around it if there is none. Returns its folder.
///
/// # Errors
/// The name is not one or is taken, or the disk says no.
pub fn new(workspace: &Path, name: &str) -> Result<PathBuf, PackageError> {
    template::check_name(name)?;
    put(workspace, name, &template::plugin(name))
}

/// Copies a catalogue entry into the package, to be changed there, and makes the package if there is none. Returns the
/// copy's folder.
///
/// # Errors
/// There is no such entry, the package has a plugin of that name, or the disk says no.
pub fn add(workspace: &Path, entry: &str) -> Result<PathBuf, PackageError> {
    let names: Vec<String> = CATALOG.iter().filter_map(|p| p.manifest().ok()).map(|m| m.name).collect();
    let Some(at) = names.iter().position(|name| name == entry) else {
        let near = nearest(entry, names.iter().map(String::as_str)).map(String::from);
        return Err(PackageError::UnknownEntry { name: entry.into(), near, known: names });
    };
    let files: Vec<(String, String)> =
        CATALOG[at].files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
    put(workspace, entry, &files)
}

/// Removes a plugin from the package and from its list.
///
/// # Errors
/// There is no such plugin, or the disk says no.
pub fn remove(workspace: &Path, name: &str) -> Result<(), PackageError> {
    let folder = folder::of(workspace, name);
    if template::check_name(name).is_err() || !folder.is_dir() {
        let known = folder::names(workspace)?;
        let near = nearest(name, known.iter().map(String::as_str)).map(String::from);
        return Err(PackageError::UnknownPlugin { name: name.into(), near, known });
    }
    fs::remove_dir_all(&folder).map_err(|source| PackageError::io(&folder, source))?;
    folder::write_list(workspace)
}

fn put(workspace: &Path, name: &str, files: &[(String, String)]) -> Result<PathBuf, PackageError> {
    let folder = folder::of(workspace, name);
    if folder.exists() {
        return Err(PackageError::Taken { name: name.into(), path: folder });
    }
    ensure(workspace)?;
    folder::write_files(&folder, files)?;
    folder::write_list(workspace)?;
    Ok(folder)
}

/// Makes the package if there is none, and points it at this crit's SDK.
fn ensure(workspace: &Path) -> Result<(), PackageError> {
    let sdk = sdk::unpack(workspace)?;
    let root = root(workspace);
    if !exists(workspace) {
        folder::write_files(&root, &template::package())?;
        let lock = root.join("Cargo.lock");
        fs::copy(sdk.join("Cargo.lock"), &lock).map_err(|source| PackageError::io(&lock, source))?;
        folder::write_list(workspace)?;
    }
    point_at_sdk(&root.join("Cargo.toml"))
}

/// Writes the digest of this crit's SDK into the manifest's paths.
fn point_at_sdk(manifest: &Path) -> Result<(), PackageError> {
    let text = fs::read_to_string(manifest).map_err(|source| PackageError::io(manifest, source))?;
    let pointed = template::with_sdk(&text, &sdk::digest().to_string());
    if pointed != text {
        fs::write(manifest, pointed).map_err(|source| PackageError::io(manifest, source))?;
    }
    Ok(())
}
