//! The prefix cache under random use, through its plugin.

use crit_catalog::entries::prefix_cache::PLUGIN;
use crit_core::plugin::PrefixCache;
use crit_kernels::plugin::{Instance, conformance};
use proptest::prelude::*;

const BLOCK: usize = 2;

fn cache() -> Box<dyn PrefixCache> {
    match conformance::made(&PLUGIN, "{}").unwrap() {
        Instance::PrefixCache(cache) => cache,
        _ => panic!("not a prefix cache"),
    }
}

proptest! {
    /// Whatever is asked, an answer is a beginning that was inserted, in the blocks it was inserted with.
    #[test]
    fn answers_are_beginnings_that_were_inserted(
        inserts in proptest::collection::vec(proptest::collection::vec(0u32..3, 0..12), 1..20),
        asked in proptest::collection::vec(0u32..3, 0..12),
    ) {
        let mut cache = cache();
        // The block's number encodes its beginning, so that a wrong block is seen.
        let name = |tokens: &[u32]| tokens.iter().fold(1u32, |n, t| n * 4 + t);
        for tokens in &inserts {
            let blocks: Vec<u32> = (1..=tokens.len() / BLOCK).map(|n| name(&tokens[..n * BLOCK])).collect();
            cache.insert(tokens, &blocks, BLOCK);
        }
        let found = cache.lookup(&asked, BLOCK).blocks;
        let expected: Vec<u32> = (1..=asked.len() / BLOCK)
            .map(|n| &asked[..n * BLOCK])
            .take_while(|start| inserts.iter().any(|tokens| tokens.starts_with(start)))
            .map(name)
            .collect();
        prop_assert_eq!(found, expected);
    }
}
