//! The entries, one folder each.

pub mod ngram_drafter;
pub mod prefix_cache;

use crit_kernels::plugin::Plugin;

/// All entries, by name in ascending order.
pub const CATALOG: &[Plugin] = &[ngram_drafter::PLUGIN, prefix_cache::PLUGIN];
