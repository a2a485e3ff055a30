//! The entries, one folder each.

pub mod draft_head;
pub mod kv_q8;
pub mod ngram_drafter;
pub mod prefix_cache;
pub mod weights_q8;

use crit_kernels::plugin::Plugin;

/// All entries, by name in ascending order.
pub const CATALOG: &[Plugin] =
    &[draft_head::PLUGIN, kv_q8::PLUGIN, ngram_drafter::PLUGIN, prefix_cache::PLUGIN, weights_q8::PLUGIN];
