//! The contract of a prefix cache, tried against a model of it that is too simple to be wrong: a list of remembered
//! block paths.
//!
//! A cache may remember less than the model (it may refuse to insert), never other blocks than those offered for the
//! very tokens asked for.

use super::{Numbers, Verdict, require};
use crit_core::plugin::PrefixCache;
use std::collections::BTreeMap;

const BLOCK_TOKENS: usize = 4;

/// Every remembered beginning with the block that holds its last part.
#[derive(Default)]
struct Model {
    paths: BTreeMap<Vec<u32>, u32>,
}

impl Model {
    fn longest(&self, tokens: &[u32]) -> Vec<u32> {
        (1..=tokens.len() / BLOCK_TOKENS).map_while(|n| self.paths.get(&tokens[..n * BLOCK_TOKENS]).copied()).collect()
    }

    fn holds(&self, block: u32) -> bool {
        self.paths.values().any(|b| *b == block)
    }

    fn extended(&self, path: &[u32]) -> bool {
        self.paths.keys().any(|other| other.len() > path.len() && other.starts_with(path))
    }
}

pub(super) fn check(cache: &mut dyn PrefixCache) -> Verdict {
    require(cache.is_empty(), || "a new cache is not empty".into())?;
    require(cache.lookup(&[], BLOCK_TOKENS).blocks.is_empty(), || "it finds blocks for no tokens".into())?;
    require(cache.insert(&[1, 2, 3], &[], BLOCK_TOKENS).is_empty(), || "it remembers blocks never offered".into())?;
    require(cache.evict(3, &|_| true).is_empty(), || "an empty cache gives up blocks".into())?;
    let mut model = Model::default();
    let mut numbers = Numbers(3);
    let mut next_block = 0;
    for _ in 0..400 {
        match numbers.below(4) {
            0 => evict(cache, &mut model, &mut numbers)?,
            1 => lookup(cache, &model, &sequence(&mut numbers))?,
            _ => insert(cache, &mut model, &sequence(&mut numbers), &mut next_block)?,
        }
        let (has, knows) = (cache.len(), model.paths.len());
        require(has == knows, || format!("it counts {has} blocks, it was given {knows} and gave up the rest"))?;
    }
    let left = model.paths.len();
    let given_up = cache.evict(usize::MAX, &|_| true).len();
    require(given_up == left && cache.is_empty(), || format!("asked for all, it gave up {given_up} of {left} blocks"))
}

fn lookup(cache: &mut dyn PrefixCache, model: &Model, tokens: &[u32]) -> Verdict {
    let (found, expected) = (cache.lookup(tokens, BLOCK_TOKENS).blocks, model.longest(tokens));
    require(found == expected, || format!("for {tokens:?} it found blocks {found:?}, remembered are {expected:?}"))
}

fn insert(cache: &mut dyn PrefixCache, model: &mut Model, tokens: &[u32], next_block: &mut u32) -> Verdict {
    let shared = model.longest(tokens);
    let full = tokens.len() / BLOCK_TOKENS;
    // As the runtime does: the shared beginning in the blocks it came from, the rest in fresh ones.
    let mut blocks = shared.clone();
    blocks.extend((shared.len()..full).map(|i| *next_block + (i - shared.len()) as u32));
    *next_block += full as u32;
    let added = cache.insert(tokens, &blocks, BLOCK_TOKENS);
    let offered = &blocks[shared.len()..];
    require(offered.starts_with(&added), || format!("offered new blocks {offered:?}, it says it remembers {added:?}"))?;
    for (i, block) in added.iter().enumerate() {
        model.paths.insert(tokens[..(shared.len() + i + 1) * BLOCK_TOKENS].to_vec(), *block);
    }
    // The same beginning computed twice: the blocks remembered first stay.
    let twins: Vec<u32> = (0..full as u32).map(|i| 1_000_000 + i).collect();
    let known = model.longest(tokens).len();
    let again = cache.insert(tokens, &twins, BLOCK_TOKENS);
    require(twins[known..].starts_with(&again), || format!("a known beginning was remembered twice: {again:?}"))?;
    for (i, block) in again.iter().enumerate() {
        model.paths.insert(tokens[..(known + i + 1) * BLOCK_TOKENS].to_vec(), *block);
    }
    lookup(cache, model, tokens)
}

fn evict(cache: &mut dyn PrefixCache, model: &mut Model, numbers: &mut Numbers) -> Verdict {
    let wanted = numbers.below(5) as usize;
    let parity = numbers.below(3) as u32;
    let unused = move |block: u32| block % 3 != parity;
    let given_up = cache.evict(wanted, &unused);
    require(given_up.len() <= wanted, || format!("asked for {wanted} blocks, it gave up {}", given_up.len()))?;
    for block in &given_up {
        require(unused(*block), || format!("it gave up block {block}, which is in use"))?;
        let path = model.paths.iter().find(|(_, b)| *b == block).map(|(path, _)| path.clone());
        let path = path.ok_or_else(|| format!("it gave up block {block}, which it did not hold"))?;
        require(!model.extended(&path), || format!("it gave up block {block} before the blocks that follow it"))?;
        model.paths.remove(&path);
        require(!model.holds(*block), || format!("block {block} is still remembered elsewhere"))?;
    }
    let leaf_left = model.paths.iter().any(|(path, block)| unused(*block) && !model.extended(path));
    require(given_up.len() == wanted || !leaf_left, || {
        format!("asked for {wanted} blocks, it gave up {} although more could go", given_up.len())
    })
}

/// Tokens from a small alphabet, so that beginnings are shared and forks are common.
fn sequence(numbers: &mut Numbers) -> Vec<u32> {
    let len = numbers.below(22) as usize;
    // One of two phrases at the head makes long shared beginnings likely.
    let head = numbers.below(2) as u32;
    (0..len).map(|i| if i < 8 { head * 10 + i as u32 } else { numbers.below(2) as u32 }).collect()
}
