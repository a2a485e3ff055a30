//! The executor's state as the runtime hands it out: blocks, slots, and what the prefix cache remembers.

use super::ExecutorInfo;
use super::blocks::{BlockPool, BlockTable, OutOfBlocks};
use super::sequence::Held;
use crate::plugin::PrefixCache;
use std::collections::HashSet;

/// Everything a sequence can hold.
pub(super) struct StateStore {
    pub(super) pool: BlockPool,
    slots_free: Vec<u32>,
    cache: Option<Box<dyn PrefixCache>>,
    /// Tokens past which a sequence is long.
    long_above: usize,
    /// Blocks the cache remembers, each holding one reference. Kept here too, so that a cache that miscounts cannot
    /// free a block under a sequence.
    remembered: HashSet<u32>,
}

impl StateStore {
    pub(super) fn new(info: &ExecutorInfo, cache: Option<Box<dyn PrefixCache>>) -> Self {
        let slots = u32::try_from(info.slots).unwrap_or(u32::MAX);
        // Blocks hold no recurrent state: a beginning whose state is gone has to be computed.
        let cache = cache.filter(|_| info.slot_bytes == 0);
        Self {
            pool: BlockPool::new(info.blocks, info.block_tokens),
            slots_free: (0..slots).rev().collect(),
            cache,
            long_above: info.long_above.unwrap_or(usize::MAX),
            remembered: HashSet::new(),
        }
    }

    /// Slots nobody holds.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> usize {
        self.slots_free.len()
    }

    /// Positions the largest sequence could have if it were alone.
    pub(super) fn positions(&self) -> usize {
        self.pool.total().saturating_mul(self.pool.block_tokens())
    }

    /// State for a sequence that begins with `tokens`: what the prefix cache has of the first `sharable` of them, but
    /// never all (one has to be computed), and room for `positions` in all. `spare` blocks must stay free beyond that.
    /// `None`, and nothing happened, if there is no slot or not enough memory.
    pub(super) fn open(&mut self, tokens: &[u32], sharable: usize, positions: usize, spare: usize) -> Option<Held> {
        if self.slots_free.is_empty() {
            return None;
        }
        let long = tokens.len() > self.long_above;
        let mut table = self.lookup(tokens, if long { 0 } else { sharable });
        let computed = table.blocks().len() * self.pool.block_tokens();
        let wanted = table.missing(&self.pool, positions) + spare;
        self.make_room(wanted);
        if wanted > self.pool.free() || table.grow(&mut self.pool, positions).is_err() {
            table.clear(&mut self.pool);
            return None;
        }
        let slot = self.slots_free.pop()?;
        Some(Held { table, slot, computed, long })
    }

    /// Whether the state of a sequence that has grown to `length` tokens is of no use any more.
    pub(super) fn outgrown(&self, held: &Held, length: usize) -> bool {
        !held.long && length > self.long_above
    }

    /// Forgets what was computed: the sequence is long from now on.
    pub(super) fn restart(&mut self, held: &mut Held) {
        held.table.truncate(&mut self.pool, 0);
        (held.computed, held.long) = (0, true);
    }

    /// Tokens a sequence of `length` may be tried with before it would be long.
    pub(super) fn short_room(&self, held: &Held, length: usize) -> usize {
        if held.long { usize::MAX } else { self.long_above.saturating_sub(length) }
    }

    /// Makes room for `positions` positions, and makes sure none from `computed` on lies in a shared block. Returns the
    /// copies that have to be made before the write.
    pub(super) fn extend(&mut self, held: &mut Held, positions: usize) -> Result<Vec<(u32, u32)>, OutOfBlocks> {
        self.make_room(held.table.missing(&self.pool, positions));
        held.table.grow(&mut self.pool, positions)?;
        match held.table.unshare(&mut self.pool, held.computed, positions) {
            Ok(copies) => Ok(copies),
            Err(missing) => {
                self.make_room(missing.wanted);
                held.table.unshare(&mut self.pool, held.computed, positions)
            }
        }
    }

    /// Offers the whole blocks of a sequence to the prefix cache.
    pub(super) fn remember(&mut self, held: &Held, tokens: &[u32]) {
        let Some(cache) = self.cache.as_mut().filter(|_| !held.long) else { return };
        let size = self.pool.block_tokens();
        let whole = (held.computed.min(tokens.len()) / size).min(held.table.blocks().len());
        if whole == 0 {
            return;
        }
        let offered = &held.table.blocks()[..whole];
        for block in cache.insert(&tokens[..whole * size], offered, size) {
            if offered.contains(&block) && self.remembered.insert(block) {
                self.pool.retain(block);
            }
        }
    }

    /// Takes back what a sequence held.
    pub(super) fn close(&mut self, mut held: Held) {
        held.table.clear(&mut self.pool);
        self.slots_free.push(held.slot);
    }

    /// Blocks the prefix cache holds.
    pub(super) fn remembered(&self) -> usize {
        self.remembered.len()
    }

    fn lookup(&mut self, tokens: &[u32], sharable: usize) -> BlockTable {
        let size = self.pool.block_tokens();
        let whole = sharable.min(tokens.len().saturating_sub(1)) / size;
        let Some(cache) = self.cache.as_mut().filter(|_| whole > 0) else { return BlockTable::default() };
        let hit = cache.lookup(&tokens[..whole * size], size);
        let blocks = &hit.blocks[..hit.blocks.len().min(whole)];
        // A cache that names a block nobody holds is wrong: what it says is then not used at all.
        BlockTable::sharing(&mut self.pool, blocks).unwrap_or_default()
    }

    /// Lets the prefix cache give up blocks so that `wanted` are free, unless even all it could give up were too few.
    fn make_room(&mut self, wanted: usize) {
        let missing = wanted.saturating_sub(self.pool.free());
        let Some(cache) = self.cache.as_mut().filter(|_| missing > 0) else { return };
        let pool = &self.pool;
        let unused = |block: u32| pool.references(block) == 1;
        if self.remembered.iter().filter(|block| unused(**block)).count() < missing {
            return;
        }
        for block in cache.evict(missing, &unused) {
            if self.remembered.remove(&block) {
                self.pool.release(block);
            }
        }
    }
}
