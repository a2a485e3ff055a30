//! `engine/engine.json` of a workspace: read, checked, resolved.

use crate::catalog;
use crate::error::ToolError;
use crate::next::Next;
use crate::workspace::Workspace;
use crit_catalog::host::check_fit;
use crit_core::error::ErrorKind;
use crit_core::json;
use crit_core::plugin::{Assembly, AssemblyError, Manifest, PluginUse, QualityMode, ResolvedPlugin, Slot, resolve};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An assembly that keeps all rules.
pub struct Checked {
    /// As written, with the model's path made absolute.
    pub assembly: Assembly,
    /// Its plugins with every option.
    pub plugins: Vec<ResolvedPlugin>,
}

/// Where the assembly of a workspace is.
pub fn path(workspace: &Workspace) -> PathBuf {
    workspace.engine().join("engine.json")
}

/// Reads the assembly of `workspace`; its model's path made absolute.
///
/// # Errors
/// There is none, or it is no assembly.
pub fn read(workspace: &Workspace) -> Result<Assembly, ToolError> {
    let path = path(workspace);
    if !path.is_file() {
        return Err(ToolError::new(ErrorKind::Input, format!("there is no {}", workspace.relative(&path)))
            .with_hint("call `recon` with `model`, or run `crit init --model MODEL`; both write it")
            .with_next(Next::call("recon").with("model", "MODEL")));
    }
    let mut assembly: Assembly = json::from_value(json::parse_file(&path)?, &workspace.relative(&path))?;
    assembly.model = absolute(workspace.root(), &assembly.model);
    Ok(assembly)
}

/// Reads an assembly from any file, as it stands.
///
/// # Errors
/// The file cannot be read or is no assembly.
pub fn from_file(path: &Path) -> Result<Assembly, ToolError> {
    Ok(json::from_value(json::parse_file(path)?, &path.display().to_string())?)
}

/// `path` counted from `root` unless it is absolute.
pub fn absolute(root: &Path, path: &Path) -> PathBuf {
    let joined = root.join(path);
    joined.canonicalize().unwrap_or(joined)
}

/// Checks `assembly` against the catalogue and `own` plugins of an engine package.
///
/// # Errors
/// The first rule it breaks.
pub fn check(assembly: Assembly, own: &[Manifest]) -> Result<Checked, ToolError> {
    let compiled = catalog::manifests()?;
    let shadowed = |manifest: &&Manifest| !own.iter().any(|mine| mine.name == manifest.name);
    let known: Vec<&Manifest> = own.iter().chain(compiled.iter().filter(shadowed)).collect();
    let plugins = resolve(&assembly, &known).map_err(|error| match error {
        // Only a plugin can be found by searching; any other slip is mended in the file.
        AssemblyError::Unknown { .. } | AssemblyError::Backend { .. } | AssemblyError::Requires { .. } => {
            in_file(error).with_next(Next::call("inference_search"))
        }
        other => in_file(other),
    })?;
    Ok(Checked { assembly, plugins })
}

/// Every catalogue entry made for `backend` and no other, with its default options: all a backend can do.
///
/// # Errors
/// The catalogue cannot be read.
pub fn all_for(backend: &str) -> Result<Vec<PluginUse>, ToolError> {
    let own = |manifest: &Manifest| manifest.slot == Slot::Op && manifest.backends == [backend] && backend != "cpu";
    let uses = |manifest: Manifest| PluginUse { name: manifest.name, options: BTreeMap::new() };
    Ok(catalog::manifests()?.into_iter().filter(own).map(uses).collect())
}

fn in_file(error: AssemblyError) -> ToolError {
    let mut told = ToolError::from(error);
    told.message = format!("engine/engine.json: {}", told.message);
    told
}

/// Reads, checks and resolves the assembly of `workspace`, and refuses what its model or this machine cannot have: a
/// context beyond the model's, or more memory than `free_bytes`.
///
/// # Errors
/// The first rule it breaks.
pub fn checked(workspace: &Workspace, own: &[Manifest], free_bytes: Option<u64>) -> Result<Checked, ToolError> {
    let checked = check(read(workspace)?, own)?;
    match crate::model::open(&checked.assembly.model) {
        Ok(model) => {
            check_fit(&checked.assembly, &checked.plugins, &model, free_bytes)?;
            Ok(checked)
        }
        // An engine of one's own may read what crit does not.
        Err(error) if checked.assembly.engine.is_some() && checked.assembly.model.exists() => {
            tracing::debug!("the model is not checked: {error}");
            Ok(checked)
        }
        Err(error) => Err(error),
    }
}

/// The assembly with everything said: every plugin's version and options. What a candidate digest covers; the model's
/// path is left out, because the checkpoint's own digest stands for it.
pub fn resolved(checked: &Checked) -> Value {
    let assembly = &checked.assembly;
    let plugins: Vec<Value> = checked
        .plugins
        .iter()
        .map(|plugin| {
            json!({"name": plugin.manifest.name, "version": plugin.manifest.version, "options": plugin.options})
        })
        .collect();
    json!({
        "target": assembly.target,
        "quality": assembly.quality,
        "context": assembly.context,
        "max_batch": assembly.max_batch,
        "threads": assembly.threads,
        "plugins": plugins,
        "engine": assembly.engine,
    })
}

/// Writes the first assembly of a workspace: `model` with no plugins, held to `quality`. Leaves one that is there alone.
///
/// # Errors
/// The workspace cannot be written.
pub fn init(workspace: &Workspace, model: &Path, quality: QualityMode) -> Result<bool, ToolError> {
    let path = path(workspace);
    if path.exists() {
        return Ok(false);
    }
    std::fs::create_dir_all(workspace.engine())
        .map_err(|error| ToolError::io("create", &workspace.engine(), &error))?;
    write(workspace, &Assembly { quality, ..Assembly::base(model) })?;
    Ok(true)
}

/// Sets the plugins of the workspace's assembly, leaving all else as it is.
///
/// # Errors
/// There is no assembly, a plugin or option is wrong, or the file cannot be written.
pub fn set_plugins(workspace: &Workspace, own: &[Manifest], plugins: &[PluginUse]) -> Result<(), ToolError> {
    let text = json::parse_file(&path(workspace))?;
    let mut assembly: Assembly = json::from_value(text, "engine/engine.json")?;
    assembly.plugins = plugins.to_vec();
    check(assembly.clone(), own)?;
    write(workspace, &assembly)
}

fn write(workspace: &Workspace, assembly: &Assembly) -> Result<(), ToolError> {
    let path = path(workspace);
    let text = serde_json::to_string_pretty(assembly)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write an assembly: {error}")))?;
    let part = path.with_extension("json.part");
    let written = std::fs::write(&part, text + "\n").and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|error| ToolError::io("write", &path, &error))
}
