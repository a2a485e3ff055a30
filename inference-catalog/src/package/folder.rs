//! The plugin folders of an engine package, and the list made from them.

use super::{PackageError, root};
use crit_core::digest::Digest;
use crit_core::plugin::Manifest;
use crit_kernels::plugin::parse_manifest;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A plugin as it lies in the package.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnPlugin {
    /// Its folder's name.
    pub folder: String,
    /// Its `plugin.json`.
    pub manifest: Manifest,
    /// SHA-256 over the paths and contents of its files, as `Plugin::code_digest`.
    pub code_digest: Digest,
    /// Its files by path within the folder, ascending, with their contents.
    pub files: Vec<(String, String)>,
}

/// The plugins of the package, by name; none if there is no package.
///
/// # Errors
/// A folder without a manifest that can be read, or the disk says no.
pub fn plugins(workspace: &Path) -> Result<Vec<OwnPlugin>, PackageError> {
    names(workspace)?.into_iter().map(|name| read(workspace, name)).collect()
}

pub(super) fn of(workspace: &Path, name: &str) -> PathBuf {
    root(workspace).join("plugins").join(name)
}

/// Names of the plugin folders, ascending.
pub(super) fn names(workspace: &Path) -> Result<Vec<String>, PackageError> {
    let home = root(workspace).join("plugins");
    if !home.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&home).map_err(|source| PackageError::io(&home, source))? {
        let entry = entry.map_err(|source| PackageError::io(&home, source))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(workspace: &Path, folder: String) -> Result<OwnPlugin, PackageError> {
    let home = of(workspace, &folder);
    let mut files = Vec::new();
    read_files(&home, &home, &mut files)?;
    files.sort();
    let Some((_, text)) = files.iter().find(|(path, _)| path == "plugin.json") else {
        return Err(PackageError::Plugin {
            name: folder,
            why: "its folder has no plugin.json".into(),
            hint: format!("write {}", home.join("plugin.json").display()),
        });
    };
    let manifest = parse_manifest(text)?;
    let code_digest = Digest::of_parts(files.iter().flat_map(|(path, text)| [path.as_bytes(), text.as_bytes()]));
    Ok(OwnPlugin { folder, manifest, code_digest, files })
}

fn read_files(home: &Path, at: &Path, out: &mut Vec<(String, String)>) -> Result<(), PackageError> {
    for entry in fs::read_dir(at).map_err(|source| PackageError::io(at, source))? {
        let path = entry.map_err(|source| PackageError::io(at, source))?.path();
        let name = path.strip_prefix(home).unwrap_or(&path).to_string_lossy().into_owned();
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        if path.is_dir() {
            read_files(home, &path, out)?;
        } else {
            out.push((name, fs::read_to_string(&path).map_err(|source| PackageError::io(&path, source))?));
        }
    }
    Ok(())
}

pub(super) fn write_files(home: &Path, files: &[(String, String)]) -> Result<(), PackageError> {
    for (path, text) in files {
        let path = home.join(path);
        let folder = path.parent().unwrap_or(home);
        fs::create_dir_all(folder).map_err(|source| PackageError::io(folder, source))?;
        fs::write(&path, text).map_err(|source| PackageError::io(&path, source))?;
    }
    Ok(())
}

/// Writes `plugins/mod.rs` for the folders there are.
pub(super) fn write_list(workspace: &Path) -> Result<(), PackageError> {
    let text = list(&names(workspace)?);
    write_files(&root(workspace).join("plugins"), &[("mod.rs".into(), text)])
}

/// What `plugins/mod.rs` should be.
pub(super) fn list(names: &[String]) -> String {
    let mut out =
        String::from("//! The engine's own plugins, by name. `crit plugins new|add|remove` write this list.\n\n");
    for name in names {
        let _ = writeln!(out, "pub mod {name};");
    }
    out.push_str("\nuse crit_kernels::plugin::Plugin;\n\n/// All of them.\npub const OWN: &[Plugin] = &[");
    for name in names {
        let _ = write!(out, "\n    {name}::PLUGIN,");
    }
    out.push_str(if names.is_empty() { "];\n" } else { "\n];\n" });
    out
}
