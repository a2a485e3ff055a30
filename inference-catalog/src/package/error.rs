//! What can be wrong with an engine package.

use crate::entry::EntryError;
use crate::sdk::SdkError;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::plugin::AssemblyError;
use crit_kernels::plugin::PluginError;
use std::io;
use std::path::{Path, PathBuf};

/// Why an engine package cannot be made, checked, tested or built.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A name that is not a plugin's.
    #[error("`{name}` is not a plugin name: {why}")]
    Name {
        /// As given.
        name: String,
        /// What a name is.
        why: String,
    },
    /// The package has it already.
    #[error("the engine package has a plugin `{name}` already, in {}", path.display())]
    Taken {
        /// The name.
        name: String,
        /// Its folder.
        path: PathBuf,
    },
    /// No such catalogue entry.
    #[error("the catalogue has no entry `{name}`")]
    UnknownEntry {
        /// As given.
        name: String,
        /// The closest entry.
        near: Option<String>,
        /// All entries.
        known: Vec<String>,
    },
    /// No such plugin in the package.
    #[error("the engine package has no plugin `{name}`")]
    UnknownPlugin {
        /// As given.
        name: String,
        /// The closest plugin.
        near: Option<String>,
        /// All its plugins.
        known: Vec<String>,
    },
    /// There is no package.
    #[error("{} is not an engine package: it has no Cargo.toml", path.display())]
    NoPackage {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// A plugin's folder breaks a rule.
    #[error("plugin `{name}`: {why}")]
    Plugin {
        /// Its name.
        name: String,
        /// The rule.
        why: String,
        /// What to do.
        hint: String,
    },
    /// A manifest that cannot be read.
    #[error(transparent)]
    Manifest(#[from] PluginError),
    /// A description that cannot be read.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The assembly does not go with the plugins.
    #[error("engine.json: {0}")]
    Assembly(#[from] AssemblyError),
    /// The assembly cannot be read.
    #[error("{}: {why}", path.display())]
    AssemblyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Cargo is not installed.
    #[error("cargo cannot be run: {source}")]
    NoCargo {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Cargo said no.
    #[error("{what} failed; the log is {}\n{errors}", log.display())]
    Cargo {
        /// `cargo build`, `cargo check`, `cargo test`.
        what: String,
        /// The whole output.
        log: PathBuf,
        /// What the log says is wrong.
        errors: String,
        /// What to do.
        hint: String,
    },
    /// What the executable says of its plugins is not what lies in the folders.
    #[error("the built engine is not what lies in the plugin folders: {why}")]
    Differs {
        /// How.
        why: String,
    },
    /// The SDK.
    #[error(transparent)]
    Sdk(#[from] SdkError),
    /// The disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl PackageError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }
}

impl Diagnose for PackageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::Taken { .. } | Self::UnknownEntry { .. } | Self::UnknownPlugin { .. } => {
                ErrorKind::Usage
            }
            Self::NoPackage { .. } | Self::AssemblyFile { .. } => ErrorKind::Input,
            Self::Plugin { .. } | Self::Cargo { .. } | Self::Differs { .. } => ErrorKind::Check,
            Self::Manifest(error) => error.kind(),
            Self::Entry(error) => error.kind(),
            Self::Assembly(error) => error.kind(),
            Self::Sdk(error) => error.kind(),
            Self::NoCargo { .. } | Self::Io { .. } => ErrorKind::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Name { .. } => "choose a name like `my_drafter`".into(),
            Self::Taken { path, .. } => format!("change it in {}, or choose another name", path.display()),
            Self::UnknownEntry { near: Some(near), .. } | Self::UnknownPlugin { near: Some(near), .. } => {
                format!("did you mean `{near}`?")
            }
            Self::UnknownEntry { known, .. } => format!("entries: {}", known.join(", ")),
            Self::UnknownPlugin { known, .. } if known.is_empty() => {
                "it has none; `crit plugins new NAME` makes one".into()
            }
            Self::UnknownPlugin { known, .. } => format!("its plugins: {}", known.join(", ")),
            Self::NoPackage { .. } => "make one with `crit plugins new NAME` or `crit plugins add ENTRY`".into(),
            Self::Plugin { hint, .. } | Self::Cargo { hint, .. } => hint.clone(),
            Self::Differs { .. } => "name every file of the folder in `plugin_files!` of its mod.rs".into(),
            Self::Manifest(error) => return error.hint(),
            Self::Entry(error) => return error.hint(),
            Self::Assembly(error) => return error.hint(),
            Self::AssemblyFile { .. } => "mend the file; `docs/plugins.md` shows one".into(),
            Self::Sdk(error) => return error.hint(),
            Self::NoCargo { .. } => {
                "install Rust (rustup.rs), or use an engine without plugins of its own, which needs no compiler".into()
            }
            Self::Io { .. } => return None,
        })
    }
}
