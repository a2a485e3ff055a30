//! What can be said of a package without running its code: folders, manifests, list, assembly, and that it compiles.

use super::folder::{self, OwnPlugin};
use super::{PackageError, cargo, ensure, exists, root};
use crate::{CATALOG, entry::Entry};
use crit_core::json;
use crit_core::plugin::{Assembly, Manifest, resolve};
use crit_kernels::plugin::conformance::{REQUIRED_FILES, check_manifest};
use std::fs;
use std::path::{Path, PathBuf};

/// A package that passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Its plugins, by name.
    pub plugins: Vec<OwnPlugin>,
    /// Whether its assembly was there and was checked.
    pub assembly: bool,
    /// Milliseconds the compiler took.
    pub compile_ms: u64,
    /// The compiler's output.
    pub log: PathBuf,
}

/// Checks the package's folders, manifests, list and assembly, then that its code compiles.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(workspace: &Path) -> Result<Checked, PackageError> {
    let plugins = check_files(workspace)?;
    let assembly = check_assembly(workspace, &plugins)?;
    // Building, not `cargo check`: that would compile every dependency once more for its own kind of artifact.
    let run = cargo::run(workspace, "build", &["--all-targets"])?;
    Ok(Checked { plugins, assembly, compile_ms: run.wall_ms, log: run.log })
}

/// The part that needs no compiler.
pub(super) fn check_files(workspace: &Path) -> Result<Vec<OwnPlugin>, PackageError> {
    if !exists(workspace) {
        return Err(PackageError::NoPackage { path: root(workspace) });
    }
    ensure(workspace)?;
    let plugins = folder::plugins(workspace)?;
    plugins.iter().try_for_each(|plugin| check_plugin(workspace, plugin))?;
    check_list(workspace, &plugins)?;
    Ok(plugins)
}

fn check_plugin(workspace: &Path, plugin: &OwnPlugin) -> Result<(), PackageError> {
    let home = folder::of(workspace, &plugin.folder);
    let fail = |why: String, hint: String| Err(PackageError::Plugin { name: plugin.folder.clone(), why, hint });
    let name = &plugin.manifest.name;
    if *name != plugin.folder {
        return fail(
            format!("its plugin.json calls it `{name}`"),
            format!("give folder and plugin.json one name, then run `crit plugins check` again ({})", home.display()),
        );
    }
    for required in REQUIRED_FILES {
        if !plugin.files.iter().any(|(path, text)| path == required && !text.trim().is_empty()) {
            return fail(format!("{required} is missing or empty"), format!("write {}", home.join(required).display()));
        }
    }
    if let Err(rule) = check_manifest(&plugin.manifest) {
        return fail(rule, format!("mend {}", home.join("plugin.json").display()));
    }
    let entry = plugin.files.iter().find(|(path, _)| path == "entry.json").map_or("", |(_, text)| text);
    Entry::parse(entry, &plugin.manifest)?;
    Ok(())
}

fn check_list(workspace: &Path, plugins: &[OwnPlugin]) -> Result<(), PackageError> {
    let names: Vec<String> = plugins.iter().map(|plugin| plugin.folder.clone()).collect();
    let path = root(workspace).join("plugins/mod.rs");
    let text = fs::read_to_string(&path).map_err(|source| PackageError::io(&path, source))?;
    match names.iter().find(|name| !text.contains(&format!("{name}::PLUGIN"))) {
        None => Ok(()),
        Some(name) => Err(PackageError::Plugin {
            name: name.clone(),
            why: "its folder is there, but it is not in the list".into(),
            hint: format!("add `pub mod {name};` and `{name}::PLUGIN` to {}", path.display()),
        }),
    }
}

/// Whether there is an assembly; if so it must resolve with the package's plugins and the catalogue's.
fn check_assembly(workspace: &Path, plugins: &[OwnPlugin]) -> Result<bool, PackageError> {
    let path = root(workspace).join("engine.json");
    if !path.is_file() {
        return Ok(false);
    }
    let value = json::parse_file(&path)
        .and_then(|value| json::from_value::<Assembly>(value, "engine.json"))
        .map_err(|error| PackageError::AssemblyFile { path: path.clone(), why: error.to_string() })?;
    let catalog: Vec<Manifest> = CATALOG.iter().filter_map(|plugin| plugin.manifest().ok()).collect();
    let own = plugins.iter().map(|plugin| &plugin.manifest);
    let rest = catalog.iter().filter(|m| plugins.iter().all(|plugin| plugin.manifest.name != m.name));
    resolve(&value, &own.chain(rest).collect::<Vec<_>>())?;
    Ok(true)
}
