//! Radix prefix cache: a tree over whole token blocks, least recently used leaves given up first.
//!
//! A node stands for one block of tokens after those of its parents and names the KV block that holds it. Tokens are
//! compared in full, never by hash alone, so no request can be given another's state. A node is used whenever a node
//! below it is, so a parent is never older than its children and eviction works from the leaves up.
//!
//! The tree owns no memory: the runtime counts references and says which blocks are in use.

#[cfg(test)]
mod tests;
mod tree;

use crit_core::plugin::{Options, PrefixCache, PrefixHit};
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;
use tree::Tree;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "plugin.json", "tests.rs", "tree.rs"), make };

fn make(_: &Options) -> Result<Instance, PluginError> {
    Ok(Instance::PrefixCache(Box::new(RadixCache { tree: Tree::new() })))
}

struct RadixCache {
    tree: Tree,
}

impl PrefixCache for RadixCache {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let path = self.tree.walk(tokens.chunks_exact(block_tokens.max(1)));
        PrefixHit { blocks: path.iter().map(|node| self.tree.block(*node)).collect() }
    }

    fn insert(&mut self, tokens: &[u32], blocks: &[u32], block_tokens: usize) -> Vec<u32> {
        let mut parts = tokens.chunks_exact(block_tokens.max(1)).zip(blocks);
        let known = self.tree.walk(parts.clone().map(|(part, _)| part));
        let mut node = known.last().copied().unwrap_or(Tree::ROOT);
        let mut added = Vec::new();
        for (part, block) in parts.by_ref().skip(known.len()) {
            node = self.tree.add(node, part, *block);
            added.push(*block);
        }
        added
    }

    fn evict(&mut self, wanted: usize, unused: &dyn Fn(u32) -> bool) -> Vec<u32> {
        self.tree.evict(wanted, unused)
    }

    fn len(&self) -> usize {
        self.tree.len()
    }
}
