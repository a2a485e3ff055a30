//! A plugin as code: its files, its manifest among them, and the function that makes one from resolved options.
//!
//! Plugins are plain constants. Which ones an engine has is a list the executable hands over: the catalogue's, then
//! its own. A plugin's folder depends on `crit-core` and `crit-kernels` alone, so it can be copied from the catalogue
//! into an engine package as it is.
//!
//! Invariant: `files` names every file of the folder, so that [`Plugin::code_digest`] is the identity of what runs.

pub mod conformance;

use crate::backend::cuda::Strategy;
use crate::exec::{KvFormat, OpPlugin};
use crit_core::digest::Digest;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::plugin::assembly::Options;
use crit_core::plugin::{Drafter, Manifest, PrefixCache, Slot};

/// Lists files beside the calling source file with their contents, for [`Plugin::files`].
#[macro_export]
macro_rules! plugin_files {
    ($($path:literal),+ $(,)?) => { &[$(($path, include_str!($path))),+] };
}

/// A plugin.
#[derive(Clone, Copy)]
pub struct Plugin {
    /// Its files by path within its folder, in ascending order: `README.md`, `entry.json`, `mod.rs`, `plugin.json`, …
    pub files: &'static [(&'static str, &'static str)],
    /// Makes it from options its manifest declares.
    pub make: fn(&Options) -> Result<Instance, PluginError>,
}

/// A plugin made ready, by the slot it fills.
pub enum Instance {
    /// Reuse of state across requests.
    PrefixCache(Box<dyn PrefixCache>),
    /// Proposes tokens to verify.
    Drafter(Box<dyn Drafter>),
    /// The model's own drafting head.
    DraftHead {
        /// Tokens it proposes at a time.
        tokens: usize,
    },
    /// Number format of keys and values.
    KvCache(Box<dyn KvFormat>),
    /// Kernels for ops of the program.
    Op(Box<dyn OpPlugin>),
    /// A way of the CUDA backend to be faster: which units it makes of the program's ops, and how it launches them.
    Cuda(Strategy),
}

impl Instance {
    /// The slot it fills.
    pub const fn slot(&self) -> Slot {
        match self {
            Self::PrefixCache(_) => Slot::PrefixCache,
            Self::Drafter(_) | Self::DraftHead { .. } => Slot::Drafter,
            Self::KvCache(_) => Slot::KvCache,
            Self::Op(_) | Self::Cuda(_) => Slot::Op,
        }
    }
}

impl Plugin {
    /// A file of its folder.
    pub fn file(&self, path: &str) -> Option<&'static str> {
        self.files.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
    }

    /// What it says of itself in `plugin.json`.
    ///
    /// # Errors
    /// The file is missing or is not a manifest.
    pub fn manifest(&self) -> Result<Manifest, PluginError> {
        let text = self.file("plugin.json").ok_or_else(|| PluginError::Manifest {
            plugin: self.files.first().map_or("?", |(name, _)| name).into(),
            why: "no plugin.json among its files".into(),
        })?;
        parse_manifest(text)
    }

    /// SHA-256 over the paths and contents of its files.
    pub fn code_digest(&self) -> Digest {
        Digest::of_parts(self.files.iter().flat_map(|(path, text)| [path.as_bytes(), text.as_bytes()]))
    }
}

/// Reads a `plugin.json`.
///
/// # Errors
/// It is not JSON, or not a manifest; the message names the place.
pub fn parse_manifest(text: &str) -> Result<Manifest, PluginError> {
    serde_json::from_str(text).map_err(|error| PluginError::Manifest {
        plugin: named(text).unwrap_or_else(|| "?".into()),
        why: format!("plugin.json: {error}"),
    })
}

fn named(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(value.get("name")?.as_str()?.into())
}

/// Why a plugin cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// Its manifest is missing or wrong.
    #[error("plugin `{plugin}`: {why}")]
    Manifest {
        /// Its name, as far as known.
        plugin: String,
        /// What is wrong.
        why: String,
    },
    /// Options that are fine one by one but not together.
    #[error("plugin `{plugin}`: {why}")]
    Options {
        /// Its name.
        plugin: String,
        /// What is wrong and what is right.
        why: String,
    },
    /// It cannot work here.
    #[error("plugin `{plugin}` cannot be used here: {why}")]
    Unsupported {
        /// Its name.
        plugin: String,
        /// What is missing.
        why: String,
    },
}

impl Diagnose for PluginError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Manifest { .. } => ErrorKind::Input,
            Self::Options { .. } => ErrorKind::Usage,
            Self::Unsupported { .. } => ErrorKind::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Manifest { plugin, .. } => {
                Some(format!("mend plugin.json of `{plugin}`; `docs/plugins.md` lists its fields"))
            }
            Self::Options { .. } => None,
            Self::Unsupported { plugin, .. } => Some(format!("leave out `{plugin}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"{"name": "nothing", "version": "1.0.0", "summary": "s", "slot": "drafter",
        "backends": ["cpu"], "changes_output": false}"#;

    fn refuse(_: &Options) -> Result<Instance, PluginError> {
        Err(PluginError::Unsupported { plugin: "nothing".into(), why: "it does nothing".into() })
    }

    #[test]
    fn manifest_errors_name_the_plugin_and_the_place() {
        let good = Plugin { files: &[("plugin.json", MANIFEST)], make: refuse };
        assert_eq!(good.manifest().unwrap().slot, Slot::Drafter);
        let bad = Plugin { files: &[("plugin.json", r#"{"name": "nothing", "slot": "draughter"}"#)], make: refuse };
        let error = bad.manifest().unwrap_err().to_string();
        assert!(error.contains("plugin `nothing`") && error.contains("draughter"), "{error}");
        let none = Plugin { files: &[("mod.rs", "")], make: refuse };
        assert!(none.manifest().unwrap_err().to_string().contains("no plugin.json"));
    }

    #[test]
    fn digest_depends_on_every_path_and_content() {
        let digest = |files| Plugin { files, make: refuse }.code_digest();
        let base = digest(&[("mod.rs", "a"), ("plugin.json", MANIFEST)]);
        assert_ne!(base, digest(&[("mod.rs", "b"), ("plugin.json", MANIFEST)]));
        assert_ne!(base, digest(&[("lib.rs", "a"), ("plugin.json", MANIFEST)]));
        assert_eq!(base, digest(&[("mod.rs", "a"), ("plugin.json", MANIFEST)]));
    }
}
