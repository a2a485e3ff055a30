//! `crit plugins`: plugins of the catalogue and of one's own engine package.

use super::printer::Printer;
use clap::Subcommand;
use crit_catalog::package;
use crit_tools::{Context, ToolError, catalog};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Said before a compiler runs.
const COMPILES: &str = "compiling the engine package; the first time takes minutes";

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// All plugins: of the catalogue, and the package's own.
    List,
    /// Make a plugin of one's own from the template, and the engine package around it.
    New {
        /// Its name, `snake_case`.
        name: String,
    },
    /// Copy a catalogue entry into the engine package, to be changed.
    Add {
        /// The entry.
        entry: String,
    },
    /// Remove a plugin from the engine package.
    Remove {
        /// Its name.
        name: String,
    },
    /// Check the package's plugins without measuring: manifests, lists, and that they compile.
    Check,
    /// Run the package's tests, the contract of every plugin's slot among them.
    Test,
}

/// Runs the command.
///
/// # Errors
/// A plugin breaks a rule, or the package cannot be written or built.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let root = context.workspace()?.root();
    let output = match &args.action {
        Action::List => list(context)?,
        Action::New { name } => made(context, package::new(root, name)?),
        Action::Add { entry } => made(context, package::add(root, entry)?),
        Action::Remove { name } => {
            package::remove(root, name)?;
            json!({"removed": name})
        }
        Action::Check => {
            printer.note(COMPILES);
            let checked = package::check(root)?;
            let names: Vec<&str> = checked.plugins.iter().map(|plugin| plugin.manifest.name.as_str()).collect();
            json!({"ok": true, "plugins": names, "assembly": checked.assembly, "compile_ms": checked.compile_ms,
                "log": checked.log.display().to_string()})
        }
        Action::Test => {
            printer.note(COMPILES);
            let tested = package::test(root)?;
            json!({"ok": true, "tests": tested.tests, "wall_ms": tested.wall_ms, "log": tested.log.display().to_string()})
        }
    };
    printer.output(&output)?;
    Ok(ExitCode::SUCCESS)
}

fn made(context: &Context, folder: std::path::PathBuf) -> Value {
    let shown = context.workspace().map_or_else(|_| folder.display().to_string(), |w| w.relative(&folder));
    json!({"folder": shown, "next": "edit it, then `crit plugins check`, `crit plugins test`, `crit build`"})
}

fn list(context: &Context) -> Result<Value, ToolError> {
    let root = context.workspace()?.root();
    let own = if package::exists(root) { package::plugins(root)? } else { Vec::new() };
    let own: Vec<Value> = own
        .iter()
        .map(|plugin| {
            let manifest = &plugin.manifest;
            json!({"name": manifest.name, "version": manifest.version, "slot": catalog::slot_name(manifest.slot),
                "summary": manifest.summary, "folder": plugin.folder})
        })
        .collect();
    let entries: Vec<Value> = catalog::documents()?
        .into_iter()
        .map(|document| {
            json!({"name": document.name, "slot": document.slot, "backends": document.backends,
                "summary": document.summary, "options": document.options, "changes_output": document.changes_output})
        })
        .collect();
    Ok(json!({"own": own, "catalogue": entries}))
}
