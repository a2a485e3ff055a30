//! Drafting head: the model proposes with the layer it was trained to draft with, behind every step.
//!
//! The runtime runs the head; this entry only says that it should, and how far ahead.

#[cfg(test)]
mod tests;

use crit_core::plugin::Options;
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "plugin.json", "tests.rs"), make };

fn make(options: &Options) -> Result<Instance, PluginError> {
    Ok(Instance::DraftHead { tokens: options.int("draft_tokens") as usize })
}
