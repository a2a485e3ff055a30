//! The catalogue as documents to search and to show.

use crate::error::ToolError;
use crit_core::error::{ErrorKind, nearest};
use crit_core::plugin::{Manifest, OptionSpec, Slot};

/// An entry of the catalogue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Name, as in engine.json.
    pub name: String,
    /// Title.
    pub title: String,
    /// The idea in one sentence.
    pub summary: String,
    /// The slot it fills.
    pub slot: String,
    /// Words it should be found by.
    pub tags: Vec<String>,
    /// Backends it has code for.
    pub backends: Vec<String>,
    /// Models and situations it is for.
    pub applies_to: String,
    /// Where it helps.
    pub wins: String,
    /// Where it harms.
    pub hurts: String,
    /// How much to expect.
    pub expected_gain: String,
    /// Options, one line each.
    pub options: Vec<String>,
    /// Whether it may change the tokens an engine gives.
    pub changes_output: bool,
    /// Notes.
    pub readme: String,
}

/// All entries, in order of name.
///
/// # Errors
/// An entry's own files are wrong.
pub fn documents() -> Result<Vec<Document>, ToolError> {
    crit_catalog::CATALOG
        .iter()
        .map(|plugin| {
            let entry = crit_catalog::Entry::of(plugin)?;
            let manifest = plugin.manifest().map_err(|error| ToolError::new(ErrorKind::Internal, error.to_string()))?;
            Ok(Document {
                name: entry.name,
                title: entry.title,
                summary: entry.summary,
                slot: slot_name(entry.slot).to_string(),
                tags: entry.tags,
                backends: entry.backends,
                applies_to: entry.applies_to,
                wins: entry.wins,
                hurts: entry.hurts,
                expected_gain: entry.expected_gain,
                options: options(&manifest),
                changes_output: manifest.changes_output,
                readme: plugin.file("README.md").unwrap_or_default().to_string(),
            })
        })
        .collect()
}

/// The manifests of all plugins compiled in.
///
/// # Errors
/// A plugin's own manifest is wrong.
pub fn manifests() -> Result<Vec<Manifest>, ToolError> {
    let read = |plugin: &crit_kernels::plugin::Plugin| {
        plugin.manifest().map_err(|error| ToolError::new(ErrorKind::Internal, error.to_string()))
    };
    crit_catalog::CATALOG.iter().map(read).collect()
}

/// The entry called `name`.
///
/// # Errors
/// No such entry; names the nearest.
pub fn find<'a>(documents: &'a [Document], name: &str) -> Result<&'a Document, ToolError> {
    documents.iter().find(|document| document.name == name).ok_or_else(|| {
        let all: Vec<&str> = documents.iter().map(|document| document.name.as_str()).collect();
        let hint = match nearest(name, all.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the entries are {}", all.join(", ")),
        };
        ToolError::new(ErrorKind::Usage, format!("there is no catalogue entry `{name}`")).with_hint(hint)
    })
}

/// A slot as it is written.
pub const fn slot_name(slot: Slot) -> &'static str {
    match slot {
        Slot::KvCache => "kv_cache",
        Slot::PrefixCache => "prefix_cache",
        Slot::Drafter => "drafter",
        Slot::Op => "op",
    }
}

fn options(manifest: &Manifest) -> Vec<String> {
    let line = |(name, spec): (&String, &OptionSpec)| match spec {
        OptionSpec::Int { about, min, max, default } => format!("{name}: {about} ({min}..{max}, default {default})"),
        OptionSpec::Bool { about, default } => format!("{name}: {about} (true or false, default {default})"),
        OptionSpec::Choice { about, values, default } => {
            format!("{name}: {about} ({}, default {default})", values.join(" | "))
        }
    };
    manifest.options.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_entry_can_be_shown() {
        let documents = super::documents().expect("all entries are sound");
        assert!(documents.iter().all(|d| !d.readme.is_empty() && !d.summary.is_empty()));
        assert_eq!(documents.len(), super::manifests().expect("sound").len());
    }
}
