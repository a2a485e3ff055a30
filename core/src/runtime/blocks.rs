//! KV blocks: who holds which, counted, and the block table of a sequence.
//!
//! Invariants: a block is free or has at least one reference, never both; a block with more than one reference is not
//! written (a writer copies it first); a table of n positions holds exactly ceil(n / block_tokens) blocks or more, if
//! reserved ahead. No memory lives here: an executor's arrays are addressed by the block numbers.

/// The blocks of an executor.
#[derive(Clone, Debug)]
pub struct BlockPool {
    block_tokens: usize,
    references: Vec<u32>,
    free: Vec<u32>,
}

/// There are not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} more KV blocks are needed and {free} are free")]
pub struct OutOfBlocks {
    /// Blocks missing for the wish.
    pub wanted: usize,
    /// Blocks free.
    pub free: usize,
}

impl BlockPool {
    /// `blocks` free blocks of `block_tokens` positions (at least one).
    pub fn new(blocks: usize, block_tokens: usize) -> Self {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        // Handed out from the end: low numbers first.
        Self {
            block_tokens: block_tokens.max(1),
            references: vec![0; blocks as usize],
            free: (0..blocks).rev().collect(),
        }
    }

    /// Positions of a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks there are.
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// Blocks nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks somebody holds.
    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// Blocks that hold `positions` positions.
    pub fn blocks_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.block_tokens)
    }

    /// References to a block; 0 if it is free or does not exist.
    pub fn references(&self, block: u32) -> u32 {
        self.references.get(block as usize).copied().unwrap_or(0)
    }

    /// Takes a free block, with one reference.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// Adds a reference to a held block. False if the block is not held: then nothing happened.
    pub fn retain(&mut self, block: u32) -> bool {
        match self.references.get_mut(block as usize) {
            Some(count) if *count > 0 => {
                *count += 1;
                true
            }
            _ => false,
        }
    }

    /// Drops a reference; the last one frees the block. False if the block is not held: then nothing happened.
    pub fn release(&mut self, block: u32) -> bool {
        match self.references.get_mut(block as usize) {
            Some(count) if *count > 0 => {
                *count -= 1;
                if *count == 0 {
                    self.free.push(block);
                }
                true
            }
            _ => false,
        }
    }
}

/// The blocks that hold a sequence's positions, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<u32>,
}

impl BlockTable {
    /// A table that starts with blocks somebody else wrote; each gets a reference. `None`, and nothing happened, if one
    /// of them is not held.
    pub fn sharing(pool: &mut BlockPool, blocks: &[u32]) -> Option<Self> {
        for (i, &block) in blocks.iter().enumerate() {
            if !pool.retain(block) {
                blocks[..i].iter().for_each(|&b| {
                    pool.release(b);
                });
                return None;
            }
        }
        Some(Self { blocks: blocks.to_vec() })
    }

    /// The blocks.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Blocks missing to hold `positions`.
    pub fn missing(&self, pool: &BlockPool, positions: usize) -> usize {
        pool.blocks_for(positions).saturating_sub(self.blocks.len())
    }

    /// Makes room for `positions` positions in all.
    ///
    /// # Errors
    /// Too few blocks are free; then nothing happened.
    pub fn grow(&mut self, pool: &mut BlockPool, positions: usize) -> Result<(), OutOfBlocks> {
        let wanted = self.missing(pool, positions);
        if wanted > pool.free() {
            return Err(OutOfBlocks { wanted, free: pool.free() });
        }
        self.blocks.extend((0..wanted).map_while(|_| pool.allocate()));
        Ok(())
    }

    /// Gives back the blocks behind the first `positions` positions.
    pub fn truncate(&mut self, pool: &mut BlockPool, positions: usize) {
        let keep = pool.blocks_for(positions).min(self.blocks.len());
        self.blocks.drain(keep..).for_each(|block| {
            pool.release(block);
        });
    }

    /// Replaces shared blocks that positions `from .. to` would be written to by fresh ones. Returns (shared, fresh)
    /// pairs whose contents have to be copied before the write; the table no longer holds the shared ones.
    ///
    /// # Errors
    /// Too few blocks are free; then nothing happened.
    pub fn unshare(&mut self, pool: &mut BlockPool, from: usize, to: usize) -> Result<Vec<(u32, u32)>, OutOfBlocks> {
        let range = from / pool.block_tokens()..pool.blocks_for(to).min(self.blocks.len());
        let shared: Vec<usize> = range.filter(|&i| pool.references(self.blocks[i]) > 1).collect();
        if shared.len() > pool.free() {
            return Err(OutOfBlocks { wanted: shared.len(), free: pool.free() });
        }
        let mut copies = Vec::with_capacity(shared.len());
        for i in shared {
            if let Some(fresh) = pool.allocate() {
                let old = std::mem::replace(&mut self.blocks[i], fresh);
                pool.release(old);
                copies.push((old, fresh));
            }
        }
        Ok(copies)
    }

    /// Gives back all blocks.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        self.truncate(pool, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Act {
        Grow(usize, usize),
        Truncate(usize, usize),
        Share(usize, usize, usize),
        Write(usize, usize, usize),
        Clear(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let table = 0..4usize;
        let positions = 0..40usize;
        prop_oneof![
            (table.clone(), positions.clone()).prop_map(|(t, n)| Act::Grow(t, n)),
            (table.clone(), positions.clone()).prop_map(|(t, n)| Act::Truncate(t, n)),
            (table.clone(), table.clone(), 0..8usize).prop_map(|(t, from, n)| Act::Share(t, from, n)),
            (table.clone(), positions.clone(), positions).prop_map(|(t, a, b)| Act::Write(t, a.min(b), a.max(b))),
            table.prop_map(Act::Clear),
        ]
    }

    /// What each block holds, as the model keeps it by hand: table contents as plain vectors of values.
    struct Model {
        pool: BlockPool,
        tables: Vec<BlockTable>,
        /// What the executor's memory would hold.
        memory: HashMap<u32, [u64; 4]>,
        /// What each table's positions should hold.
        wanted: Vec<Vec<u64>>,
        clock: u64,
    }

    impl Model {
        /// Writes new values; false if there is no block for a copy of a shared one, and then nothing is written.
        fn write(&mut self, table: usize, from: usize, to: usize) -> bool {
            let to = to.min(self.tables[table].blocks().len() * 4).min(self.wanted[table].len());
            let from = from.min(to);
            let Ok(copies) = self.tables[table].unshare(&mut self.pool, from, to) else { return false };
            for (old, fresh) in copies {
                let cells = self.memory.get(&old).copied().unwrap_or_default();
                self.memory.insert(fresh, cells);
            }
            for position in from..to {
                self.clock += 1;
                let block = self.tables[table].blocks()[position / 4];
                self.memory.entry(block).or_default()[position % 4] = self.clock;
                self.wanted[table][position] = self.clock;
            }
            true
        }

        fn apply(&mut self, act: Act) {
            match act {
                Act::Grow(t, n) => {
                    let before = self.wanted[t].len();
                    if n > before && self.tables[t].grow(&mut self.pool, n).is_ok() {
                        self.wanted[t].resize(n, 0);
                        if !self.write(t, before, n) {
                            self.tables[t].truncate(&mut self.pool, before);
                            self.wanted[t].truncate(before);
                        }
                    }
                }
                Act::Truncate(t, n) => {
                    self.tables[t].truncate(&mut self.pool, n);
                    self.wanted[t].truncate(n);
                }
                Act::Share(t, from, n) => {
                    let n = n.min(self.wanted[from].len() / 4);
                    let blocks = self.tables[from].blocks()[..n].to_vec();
                    let wanted = self.wanted[from][..n * 4].to_vec();
                    let shared = BlockTable::sharing(&mut self.pool, &blocks).expect("held blocks can be shared");
                    self.tables[t].clear(&mut self.pool);
                    self.tables[t] = shared;
                    self.wanted[t] = wanted;
                }
                Act::Write(t, from, to) => {
                    self.write(t, from, to);
                }
                Act::Clear(t) => {
                    self.tables[t].clear(&mut self.pool);
                    self.wanted[t].clear();
                }
            }
        }

        fn check(&self) -> Result<(), TestCaseError> {
            let mut held: HashMap<u32, u32> = HashMap::new();
            for (table, wanted) in self.tables.iter().zip(&self.wanted) {
                table.blocks().iter().for_each(|&b| *held.entry(b).or_default() += 1);
                for (position, value) in wanted.iter().enumerate() {
                    let block = table.blocks()[position / 4];
                    prop_assert_eq!(self.memory.get(&block).map(|cells| cells[position % 4]), Some(*value));
                }
            }
            for block in 0..self.pool.total() as u32 {
                prop_assert_eq!(self.pool.references(block), held.get(&block).copied().unwrap_or(0));
            }
            prop_assert_eq!(self.pool.used(), held.len());
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn tables_hold_what_was_written_and_nothing_leaks(acts in prop::collection::vec(act(), 1..60)) {
            let mut model = Model {
                pool: BlockPool::new(20, 4),
                tables: (0..4).map(|_| BlockTable::default()).collect(),
                memory: HashMap::new(),
                wanted: vec![Vec::new(); 4],
                clock: 0,
            };
            for act in acts {
                model.apply(act);
                model.check()?;
            }
            for t in 0..4 {
                model.apply(Act::Clear(t));
            }
            prop_assert_eq!(model.pool.free(), 20);
        }
    }

    #[test]
    fn refuses_what_is_not_held() {
        let mut pool = BlockPool::new(2, 4);
        assert!(!pool.retain(0) && !pool.release(0) && !pool.release(7));
        let block = pool.allocate().expect("two are free");
        assert_eq!(BlockTable::sharing(&mut pool, &[block, 1 - block]), None);
        assert_eq!(pool.references(block), 1);
        assert_eq!(BlockTable::default().grow(&mut pool, 8), Err(OutOfBlocks { wanted: 2, free: 1 }));
        assert_eq!(pool.free(), 1);
    }
}
