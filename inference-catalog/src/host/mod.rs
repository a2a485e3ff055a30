//! The engine host: the process an engine runs in.
//!
//! It reads `engine.json`, resolves its plugins against its own and the catalogue's, opens the model, checks that it
//! fits in memory, builds the executor and serves the engine protocol. `crit engine-host` and every engine package's
//! executable are this function with different lists of plugins.
//!
//! A failure leaves as one line of JSON (a [`Failure`]) on stderr, and the exit code of its kind.

mod args;
mod build;
mod error;
mod memory;

pub use build::{Built, ExecutorKind, Hosted, build_engine, check_fit};
pub use error::HostError;
pub use memory::{BUDGET_ENV, free_bytes};

use crate::registry::known;
use args::{Args, Task};
use crit_core::digest::Digest;
use crit_core::error::Failure;
use crit_core::json;
use crit_core::model::Model;
use crit_core::plugin::{Assembly, Manifest};
use crit_core::protocol::host::serve;
use crit_kernels::plugin::Plugin;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// A plugin of an executable's own, as `--describe` tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// Its manifest.
    pub manifest: Manifest,
    /// SHA-256 over its files.
    pub code_digest: Digest,
}

/// The engine host with plugins of its own, on the process's arguments.
pub fn host_main(own: &[Plugin]) -> ExitCode {
    host_main_with(own, std::env::args().skip(1))
}

/// The engine host with plugins of its own, on `arguments`.
pub fn host_main_with(own: &[Plugin], arguments: impl IntoIterator<Item = String>) -> ExitCode {
    match run(own, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failure = Failure::from(error);
            let line = serde_json::to_string(&failure).unwrap_or_else(|_| failure.message.clone());
            // Nobody reads a closed stderr; the exit code still tells.
            let _ = writeln!(std::io::stderr(), "{line}");
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

fn run(own: &[Plugin], arguments: impl IntoIterator<Item = String>) -> Result<(), HostError> {
    match Args::parse(arguments, |name| std::env::var_os(name))? {
        Task::Help => say(args::HELP),
        Task::Describe => say(&describe(own)?),
        Task::Serve(args) => {
            let built = open(&args.config, own, args.executor)?;
            Ok(serve(built.engine, built.identity, &args.socket)?)
        }
    }
}

/// Builds the engine that the `engine.json` at `config` describes. A relative model path counts from the current
/// folder.
///
/// # Errors
/// The file, the assembly, the model or the machine says no.
pub fn open(config: &Path, own: &[Plugin], kind: ExecutorKind) -> Result<Built, HostError> {
    let assembly: Assembly = json::from_value(json::parse_file(config)?, &config.display().to_string())?;
    // Before the model is opened: a slip in a plugin's name should not wait for that.
    crate::registry::choose(&assembly, &known(own)?)?;
    let model = Model::open(&assembly.model)?;
    build_engine(&assembly, model, own, kind)
}

fn describe(own: &[Plugin]) -> Result<String, HostError> {
    let described = own
        .iter()
        .map(|plugin| Ok(Described { manifest: plugin.manifest()?, code_digest: plugin.code_digest() }))
        .collect::<Result<Vec<_>, HostError>>()?;
    Ok(serde_json::to_string(&described).unwrap_or_default())
}

fn say(text: &str) -> Result<(), HostError> {
    writeln!(std::io::stdout(), "{}", text.trim_end()).map_err(|source| HostError::Stdout { source })
}
