//! 8-bit KV: a row of one head is int8 codes with an f32 scale for each group of elements, symmetric about zero.
//!
//! Stored row: the codes, then the scales, little-endian. A scale is the group's largest magnitude over 127, so the
//! largest element is stored exactly up to rounding and an element is at most half a step off.

#[cfg(test)]
mod tests;

use crit_core::plugin::Options;
use crit_kernels::cpu::{Isa, codes};
use crit_kernels::exec::KvFormat;
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "plugin.json", "tests.rs"), make };

/// Bytes of a scale.
const SCALE_BYTES: usize = size_of::<f32>();

fn make(options: &Options) -> Result<Instance, PluginError> {
    // "row" is no number: one group, however long the row is.
    let group = options.choice("scale_per").parse().unwrap_or(usize::MAX);
    Ok(Instance::KvCache(Box::new(KvQ8 { group, isa: Isa::detect() })))
}

struct KvQ8 {
    /// Most elements that share a scale.
    group: usize,
    isa: Isa,
}

impl KvQ8 {
    fn groups(&self, dim: usize) -> usize {
        dim.div_ceil(self.group)
    }
}

impl KvFormat for KvQ8 {
    fn name(&self) -> &str {
        "q8"
    }

    fn row_bytes(&self, dim: usize) -> usize {
        dim + self.groups(dim) * SCALE_BYTES
    }

    fn write(&self, row: &[f32], out: &mut [u8]) {
        let (stored, scales) = out.split_at_mut(row.len());
        let groups = row.chunks(self.group).zip(stored.chunks_mut(self.group));
        for ((row, stored), scale) in groups.zip(scales.chunks_exact_mut(SCALE_BYTES)) {
            scale.copy_from_slice(&codes::quantise(self.isa, row, stored).to_le_bytes());
        }
    }

    fn read(&self, rows: &[u8], dim: usize, out: &mut [f32]) {
        for (row, out) in rows.chunks_exact(self.row_bytes(dim)).zip(out.chunks_exact_mut(dim)) {
            let (stored, scales) = row.split_at(dim);
            let groups = stored.chunks(self.group).zip(out.chunks_mut(self.group));
            for ((stored, out), scale) in groups.zip(scales.as_chunks::<SCALE_BYTES>().0) {
                codes::expand(self.isa, stored, f32::from_le_bytes(*scale), out);
            }
        }
    }
}
