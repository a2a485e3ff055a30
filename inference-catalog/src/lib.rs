//! Inference strategies as plugins, with their manifests, notes and tests; and the engine host that runs them.
//!
//! An entry is a folder under `entries/`: notes (`README.md`), a description for search (`entry.json`), a manifest
//! (`plugin.json`) and code (`mod.rs`). [`CATALOG`] lists them all. [`host_main`] is the process an engine runs in, with
//! these plugins and those an engine package brings. With the feature `sdk` (on in crit, off in what an engine package
//! builds) there are also [`sdk`], the embedded sources, and [`package`], which makes and builds engine packages.

pub mod entries;
pub mod entry;
pub mod host;
#[cfg(feature = "sdk")]
pub mod package;
pub mod registry;
#[cfg(feature = "sdk")]
pub mod sdk;

pub use entries::CATALOG;
pub use entry::Entry;
pub use host::{build_engine, host_main};
