//! Tests of the prefix cache. The contract's own test compares it with a naive model over random uses.

use super::*;
use crit_kernels::plugin::conformance;

const BLOCK: usize = 2;

fn cache() -> RadixCache {
    RadixCache { tree: Tree::new() }
}

#[test]
fn keeps_the_contract() {
    conformance::check(&PLUGIN).unwrap();
}

#[test]
fn a_common_beginning_is_shared_and_a_fork_is_not() {
    let mut cache = cache();
    assert_eq!(cache.insert(&[1, 2, 3, 4, 5], &[10, 11], BLOCK), [10, 11]);
    assert_eq!(cache.lookup(&[1, 2, 3, 4, 5, 6], BLOCK).blocks, [10, 11]);
    assert_eq!(cache.lookup(&[1, 2, 9, 9], BLOCK).blocks, [10]);
    assert!(cache.lookup(&[3, 4], BLOCK).blocks.is_empty(), "a block is known only after its beginning");
    assert_eq!(cache.insert(&[1, 2, 7, 8], &[10, 12], BLOCK), [12]);
    assert_eq!(cache.len(), 3);
}

#[test]
fn the_longest_unused_leaf_goes_first() {
    let mut cache = cache();
    cache.insert(&[1, 1, 2, 2], &[0, 1], BLOCK);
    cache.insert(&[1, 1, 3, 3], &[0, 2], BLOCK);
    cache.insert(&[4, 4], &[3], BLOCK);
    cache.lookup(&[1, 1, 2, 2], BLOCK);
    assert_eq!(cache.evict(1, &|_| true), [2]);
    assert_eq!(cache.evict(2, &|block| block != 3), [1, 0], "a parent goes after its last child");
    assert_eq!(cache.evict(9, &|_| true), [3]);
}
