//! `entry.json`: what a catalogue entry is for, in words a search finds.

use crit_core::error::{Diagnose, ErrorKind};
use crit_core::plugin::{Manifest, Slot};
use crit_kernels::plugin::Plugin;
use serde::{Deserialize, Serialize};

/// What an entry is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The plugin's name.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// The idea in one sentence.
    pub summary: String,
    /// The slot the plugin fills.
    pub slot: Slot,
    /// Words it should be found by.
    pub tags: Vec<String>,
    /// Backends the plugin has code for.
    pub backends: Vec<String>,
    /// Models and situations it can be used for.
    pub applies_to: String,
    /// Where it makes an engine faster or smaller.
    pub wins: String,
    /// Where it does harm.
    pub hurts: String,
    /// How much to expect, and from whom the figure is.
    pub expected_gain: String,
    /// Where the idea is from.
    pub references: Vec<Reference>,
}

/// A source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Authors, year, title.
    pub title: String,
    /// Address.
    pub url: String,
}

/// An `entry.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("entry.json of plugin `{plugin}`: {why}")]
pub struct EntryError {
    /// The plugin.
    pub plugin: String,
    /// What is wrong.
    pub why: String,
}

impl Diagnose for EntryError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Input
    }

    fn hint(&self) -> Option<String> {
        Some("`docs/plugins.md` lists the fields of entry.json".into())
    }
}

impl Entry {
    /// Reads the entry of `plugin` and checks that it says the same as its manifest.
    ///
    /// # Errors
    /// The file is missing, is not an entry, or contradicts `plugin.json`.
    pub fn of(plugin: &Plugin) -> Result<Self, EntryError> {
        let manifest = plugin.manifest().map_err(|e| EntryError { plugin: "?".into(), why: e.to_string() })?;
        Self::parse(plugin.file("entry.json").unwrap_or_default(), &manifest)
    }

    /// Reads the text of an `entry.json` and checks that it says the same as `manifest`.
    ///
    /// # Errors
    /// It is not an entry, or contradicts the manifest.
    pub fn parse(text: &str, manifest: &Manifest) -> Result<Self, EntryError> {
        let fail = |why: String| EntryError { plugin: manifest.name.clone(), why };
        let entry: Self = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
        let same = entry.name == manifest.name && entry.slot == manifest.slot && entry.backends == manifest.backends;
        if same { Ok(entry) } else { Err(fail("name, slot or backends differ from plugin.json".into())) }
    }
}
