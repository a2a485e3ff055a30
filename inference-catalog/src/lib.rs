//! Inference strategies as plugins, with their manifests, notes and tests.
//!
//! An entry is a folder under `entries/`: notes (`README.md`), a description for search (`entry.json`), a manifest
//! (`plugin.json`) and code (`mod.rs`). [`CATALOG`] lists them all.

pub mod entries;
pub mod entry;

pub use entries::CATALOG;
pub use entry::Entry;
