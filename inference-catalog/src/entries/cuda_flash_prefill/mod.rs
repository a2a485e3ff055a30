//! Prompts attend in tiles: a strategy of the CUDA backend.

use crit_core::plugin::Options;
use crit_kernels::backend::cuda::Strategy;
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "plugin.json"), make };

fn make(_: &Options) -> Result<Instance, PluginError> {
    Ok(Instance::Cuda(Strategy::FlashPrefill))
}
