//! The KV cache on the CPU: core's blocks as bytes, and how a row is stored in them.
//!
//! For each state (a layer's keys and values) there is one area; a block of it holds, head by head, the key rows of its
//! positions and then, head by head, the value rows. A [`KvFormat`] knows how one row of one head becomes bytes; the
//! base formats are f16 and f32, the catalogue adds others. Attention asks a format for whole runs of rows, so a
//! format may be as clever as it likes within a block.

use super::step::StateKey;
use crate::cpu::{Isa, halves};
use crit_core::model::program::{Program, StateKind};
use crit_core::runtime::SeqStep;
use std::collections::HashMap;
use std::sync::Arc;

/// How key and value rows are stored. Rows are `dim` elements of one head at one position.
pub trait KvFormat: Send + Sync {
    /// Name for reports: `f16`.
    fn name(&self) -> &str;

    /// Bytes of a row.
    fn row_bytes(&self, dim: usize) -> usize;

    /// Stores a row. `out` has [`KvFormat::row_bytes`] bytes.
    fn write(&self, row: &[f32], out: &mut [u8]);

    /// Reads `out.len() / dim` consecutive rows.
    fn read(&self, rows: &[u8], dim: usize, out: &mut [f32]);
}

/// Rows as f32.
#[derive(Clone, Copy, Debug)]
pub struct KvF32;

impl KvFormat for KvF32 {
    fn name(&self) -> &str {
        "f32"
    }

    fn row_bytes(&self, dim: usize) -> usize {
        dim * 4
    }

    fn write(&self, row: &[f32], out: &mut [u8]) {
        out.copy_from_slice(bytemuck::cast_slice(row));
    }

    fn read(&self, rows: &[u8], _: usize, out: &mut [f32]) {
        bytemuck::cast_slice_mut(out).copy_from_slice(rows);
    }
}

/// Rows as f16, round to nearest even; values beyond its range are held at its largest.
#[derive(Clone, Copy, Debug)]
pub struct KvF16;

impl KvFormat for KvF16 {
    fn name(&self) -> &str {
        "f16"
    }

    fn row_bytes(&self, dim: usize) -> usize {
        dim * 2
    }

    fn write(&self, row: &[f32], out: &mut [u8]) {
        halves::narrow(Isa::detect(), row, out);
    }

    fn read(&self, rows: &[u8], _: usize, out: &mut [f32]) {
        halves::widen(Isa::detect(), rows, out);
    }
}

/// Sizes of a state's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub heads: usize,
    /// Elements of a key row.
    pub key_dim: usize,
    /// Elements of a value row.
    pub value_dim: usize,
}

struct Area {
    shape: KvShape,
    bytes: Vec<u8>,
    block_bytes: usize,
    key_row: usize,
    value_row: usize,
}

/// All KV memory of an executor.
pub struct KvStore {
    format: Arc<dyn KvFormat>,
    block_tokens: usize,
    blocks: usize,
    areas: Vec<Area>,
    index: HashMap<StateKey, usize>,
}

impl KvStore {
    /// Room for `blocks` blocks of `block_tokens` positions in every state of `program`'s step.
    pub fn new(program: &Program, format: Arc<dyn KvFormat>, block_tokens: usize, blocks: usize) -> Self {
        let mut areas = Vec::new();
        let mut index = HashMap::new();
        for (use_index, place) in program.uses().enumerate() {
            for (state, decl) in program.blocks[place.block].states.iter().enumerate() {
                let StateKind::Kv { heads, key_dim, value_dim, .. } = decl.kind else { continue };
                let (home, of) = program.state_home(use_index, state);
                if let Some(area) = index.get(&StateKey { use_index: home, state: of }) {
                    index.insert(StateKey { use_index, state }, *area);
                    continue;
                }
                index.insert(StateKey { use_index, state }, areas.len());
                areas.push(Area::new(KvShape { heads, key_dim, value_dim }, format.as_ref(), block_tokens, blocks));
            }
        }
        Self { format, block_tokens, blocks, areas, index }
    }

    /// Bytes such a store takes.
    pub fn bytes_needed(program: &Program, format: &dyn KvFormat, block_tokens: usize, blocks: usize) -> u64 {
        (program.kv_bytes_per_token(|dim| format.row_bytes(dim)) as u64) * (block_tokens * blocks) as u64
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.areas.iter().map(|a| a.bytes.len() as u64).sum()
    }

    /// How rows are stored.
    pub fn format(&self) -> &dyn KvFormat {
        self.format.as_ref()
    }

    /// Positions of a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Sizes of a state's rows.
    pub fn shape(&self, key: StateKey) -> KvShape {
        self.areas[self.index[&key]].shape
    }

    /// Stores keys and values of the sequence's new positions, `[tokens, heads * dim]` each.
    pub fn append(&mut self, key: StateKey, seq: &SeqStep, keys: &[f32], values: &[f32]) {
        let area = &mut self.areas[self.index[&key]];
        let KvShape { heads, key_dim, value_dim } = area.shape;
        for t in 0..seq.tokens as usize {
            let position = seq.past as usize + t;
            let block = seq.blocks[position / self.block_tokens] as usize;
            let offset = position % self.block_tokens;
            for head in 0..heads {
                let row = &keys[(t * heads + head) * key_dim..][..key_dim];
                let at = area.key_at(block, head, offset, self.block_tokens);
                self.format.write(row, &mut area.bytes[at..at + area.key_row]);
                if value_dim == 0 {
                    continue;
                }
                let row = &values[(t * heads + head) * value_dim..][..value_dim];
                let at = area.value_at(block, head, offset, self.block_tokens);
                self.format.write(row, &mut area.bytes[at..at + area.value_row]);
            }
        }
    }

    /// Stored key rows of one head in one block: the first `count` positions.
    pub fn key_rows(&self, key: StateKey, block: u32, head: usize, count: usize) -> &[u8] {
        let area = &self.areas[self.index[&key]];
        let at = area.key_at(block as usize, head, 0, self.block_tokens);
        &area.bytes[at..at + count * area.key_row]
    }

    /// Stored value rows of one head in one block: the first `count` positions.
    pub fn value_rows(&self, key: StateKey, block: u32, head: usize, count: usize) -> &[u8] {
        let area = &self.areas[self.index[&key]];
        let at = area.value_at(block as usize, head, 0, self.block_tokens);
        &area.bytes[at..at + count * area.value_row]
    }

    /// Copies a block in every state.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        for area in &mut self.areas {
            let size = area.block_bytes;
            area.bytes.copy_within(from * size..(from + 1) * size, to * size);
        }
    }
}

impl Area {
    fn new(shape: KvShape, format: &dyn KvFormat, block_tokens: usize, blocks: usize) -> Self {
        let bytes = |dim| if dim == 0 { 0 } else { format.row_bytes(dim) };
        let (key_row, value_row) = (bytes(shape.key_dim), bytes(shape.value_dim));
        let block_bytes = shape.heads * block_tokens * (key_row + value_row);
        Self { shape, bytes: vec![0; block_bytes * blocks], block_bytes, key_row, value_row }
    }

    fn key_at(&self, block: usize, head: usize, offset: usize, block_tokens: usize) -> usize {
        block * self.block_bytes + (head * block_tokens + offset) * self.key_row
    }

    fn value_at(&self, block: usize, head: usize, offset: usize, block_tokens: usize) -> usize {
        let keys = self.shape.heads * block_tokens * self.key_row;
        block * self.block_bytes + keys + (head * block_tokens + offset) * self.value_row
    }
}
