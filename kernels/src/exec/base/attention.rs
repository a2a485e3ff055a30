//! Base attention: blocks of keys and values expanded once for all query heads that share them, online softmax (Dao et
//! al. 2022, arXiv:2205.14135), context cut into fixed splits.
//!
//! A unit of work is one key/value head of one sequence for a tile of its queries. When units are fewer than threads can
//! use (decode at long context), each split of the context is a unit of its own and the partial results are merged in
//! split order. Splits stand at fixed positions and are merged in the same order either way, so a row's result depends
//! neither on its batch mates nor on how the work was cut.

use super::attention_run::{RUN, Rows, attend};
use super::lanes::{exp, per_isa};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::attention::Attention;
use crit_core::runtime::{EngineError, SeqStep};
use std::ops::Range;

/// Query rows (tokens times the heads that share a key/value head) in a tile, if a token's fit.
const TILE_ROWS: usize = 32;

/// Positions in a split of the context.
const SPLIT: usize = 512;

struct Attend {
    isa: Isa,
    op: Attention,
    state: StateKey,
    from: ValueId,
    out: ValueId,
    /// By query head; -inf without.
    sinks: Vec<f32>,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let op: Attention = node.op::<Attention>().clone();
    let sinks = if op.sinks { node.weights[0].to_f32() } else { vec![f32::NEG_INFINITY; op.heads] };
    Ok(Box::new(Attend { isa: node.isa, op, state: node.state(), from: n.reads[0], out: n.writes[0], sinks }))
}

/// A tile of one sequence's queries against one key/value head.
struct Tile<'a> {
    seq: &'a SeqStep,
    tokens: Range<usize>,
    kv_head: usize,
    /// Splits that hold a visible position.
    splits: Range<usize>,
}

/// The running softmax of a tile: for each (token, head of the group) a maximum, a sum, and a weighted sum of values.
struct Partial {
    max: Vec<f32>,
    sum: Vec<f32>,
    acc: Vec<f32>,
}

impl Partial {
    fn new(rows: usize, dim: usize) -> Self {
        Self { max: vec![f32::NEG_INFINITY; rows], sum: vec![0.0; rows], acc: vec![0.0; rows * dim] }
    }
}

impl Kernel for Attend {
    fn name(&self) -> &str {
        "attention"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let tiles = self.tiles(&cx.batch.seqs);
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let q = cx.values.get(self.from);
        let parts = Shared::new(&mut out[..n]);
        let kv: &KvStore = cx.kv;
        let done = if tiles.len() >= 2 * cx.pool.threads() || cx.pool.threads() == 1 {
            cx.pool.run(tiles.len(), &|i, _| {
                let tile = &tiles[i];
                let mut total = self.split(tile, tile.splits.start, q, kv);
                for split in tile.splits.clone().skip(1) {
                    let next = self.split(tile, split, q, kv);
                    merge(self.isa, &mut total, &next, self.op.value_dim);
                }
                self.finish(tile, &total, &parts);
            })
        } else {
            self.by_splits(&tiles, q, kv, cx.pool, &parts)
        };
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "attention".into(), message: e.to_string() })
    }
}

impl Attend {
    fn tiles<'a>(&self, seqs: &'a [SeqStep]) -> Vec<Tile<'a>> {
        let mut tiles = Vec::new();
        for seq in seqs {
            let (past, n) = (seq.past as usize, seq.tokens as usize);
            let size = (TILE_ROWS * self.op.kv_heads / self.op.heads).max(1);
            for first in (0..n).step_by(size) {
                let tokens = first..(first + size).min(n);
                let visible = self.op.first_visible(past + first)..past + tokens.end;
                let splits = visible.start / SPLIT..visible.end.div_ceil(SPLIT);
                tiles.extend((0..self.op.kv_heads).map(|kv_head| Tile {
                    seq,
                    tokens: tokens.clone(),
                    kv_head,
                    splits: splits.clone(),
                }));
            }
        }
        tiles
    }

    fn by_splits(
        &self,
        tiles: &[Tile<'_>],
        q: &[f32],
        kv: &KvStore,
        pool: &crate::cpu::Pool,
        out: &Shared<'_, f32>,
    ) -> Result<(), crate::cpu::PoolError> {
        let units: Vec<(usize, usize)> =
            tiles.iter().enumerate().flat_map(|(i, tile)| tile.splits.clone().map(move |split| (i, split))).collect();
        let mut partials: Vec<Option<Partial>> = units.iter().map(|_| None).collect();
        let slots = Shared::new(&mut partials);
        pool.run(units.len(), &|i, _| {
            let (tile, split) = units[i];
            // SAFETY: each unit owns its slot.
            let slot = unsafe { slots.part(i, 1) };
            slot[0] = Some(self.split(&tiles[tile], split, q, kv));
        })?;
        let mut partials = partials.into_iter();
        for tile in tiles {
            let mut own = partials.by_ref().take(tile.splits.len()).flatten();
            let Some(mut total) = own.next() else { continue };
            own.for_each(|next| merge(self.isa, &mut total, &next, self.op.value_dim));
            self.finish(tile, &total, out);
        }
        Ok(())
    }

    /// The tile's softmax over the positions of one split.
    fn split(&self, tile: &Tile<'_>, split: usize, q: &[f32], kv: &KvStore) -> Partial {
        let op = &self.op;
        let past = tile.seq.past as usize;
        let group = op.heads / op.kv_heads;
        let rows = tile.tokens.len() * group;
        let mut partial = Partial::new(rows, op.value_dim);
        let first = op.first_visible(past + tile.tokens.start).max(split * SPLIT);
        let end = (past + tile.tokens.end).min((split + 1) * SPLIT);
        let mut keys = vec![0.0; RUN * op.key_dim];
        let mut values = vec![0.0; RUN * op.value_dim];
        // Rows of the tile's queries as `[token][head of the group]`, which is how they lie but for the other heads.
        let mut queries = Vec::with_capacity(rows * op.key_dim);
        for t in tile.tokens.clone() {
            let token = tile.seq.first as usize + t;
            let at = (token * op.heads + tile.kv_head * group) * op.key_dim;
            queries.extend(q[at..at + group * op.key_dim].iter().map(|v| v * op.scale));
        }
        let mut visible = vec![0..0; rows];
        // Runs stand at fixed positions, and what is invisible in them weighs exactly 0, so sums have one order whatever
        // the tile.
        let mut base = first / RUN * RUN;
        while base < end {
            let (from, to) = (first.max(base), end.min(base + RUN));
            read(kv, self.state, tile, from..to, op.key_dim, &mut keys, KvStore::key_rows);
            read(kv, self.state, tile, from..to, op.value_dim, &mut values, KvStore::value_rows);
            for (row, visible) in visible.iter_mut().enumerate() {
                let position = past + tile.tokens.start + row / group;
                let start = op.first_visible(position).max(from);
                *visible = start - base..(position + 1).min(to).max(start) - base;
            }
            let run = Rows {
                first: from - base,
                keys: &keys[..(to - from) * op.key_dim],
                values: &values[..(to - from) * op.value_dim],
                visible: &visible,
            };
            attend(self.isa, op, &queries, &run, (&mut partial.max, &mut partial.sum), &mut partial.acc);
            base += RUN;
        }
        partial
    }

    fn finish(&self, tile: &Tile<'_>, total: &Partial, out: &Shared<'_, f32>) {
        let (op, dim) = (&self.op, self.op.value_dim);
        let group = op.heads / op.kv_heads;
        for (i, t) in tile.tokens.clone().enumerate() {
            let token = tile.seq.first as usize + t;
            // SAFETY: a tile owns its tokens' rows of its own heads.
            let rows = unsafe { out.part((token * op.heads + tile.kv_head * group) * dim, group * dim) };
            for (g, row) in rows.chunks_exact_mut(dim).enumerate() {
                let at = i * group + g;
                // The sink's weight relative to the row's maximum, or the row's to the sink's, if that is larger.
                let above = self.sinks[tile.kv_head * group + g] - total.max[at];
                let (own, sink) = if above > 0.0 { ((-above).exp(), 1.0) } else { (1.0, above.exp()) };
                let scale = own / (total.sum[at] * own + sink);
                row.iter_mut().zip(&total.acc[at * dim..]).for_each(|(o, v)| *o = v * scale);
            }
        }
    }
}

/// Rows of `positions` of the tile's head as f32.
fn read<'k>(
    kv: &'k KvStore,
    state: StateKey,
    tile: &Tile<'_>,
    positions: Range<usize>,
    dim: usize,
    out: &mut [f32],
    rows: impl Fn(&'k KvStore, StateKey, u32, usize, usize) -> &'k [u8],
) {
    let size = kv.block_tokens();
    let row_bytes = kv.format().row_bytes(dim);
    let mut at = positions.start;
    while at < positions.end {
        let offset = at % size;
        let count = (size - offset).min(positions.end - at);
        let bytes = rows(kv, state, tile.seq.blocks[at / size], tile.kv_head, offset + count);
        kv.format().read(&bytes[offset * row_bytes..], dim, &mut out[(at - positions.start) * dim..][..count * dim]);
        at += count;
    }
}

per_isa! {
    /// Adds `next` to `total`.
    fn merge = merge_body(total: &mut Partial, next: &Partial, dim: usize)
}

#[inline(always)]
fn merge_body<const FMA: bool>(total: &mut Partial, next: &Partial, dim: usize) {
    for i in 0..total.max.len() {
        if next.max[i] == f32::NEG_INFINITY {
            continue;
        }
        let top = total.max[i].max(next.max[i]);
        let (mine, theirs) = (exp::<FMA>(total.max[i] - top), exp::<FMA>(next.max[i] - top));
        total.sum[i] = total.sum[i] * mine + next.sum[i] * theirs;
        let rows = total.acc[i * dim..(i + 1) * dim].iter_mut().zip(&next.acc[i * dim..]);
        rows.for_each(|(a, b)| *a = *a * mine + b * theirs);
        total.max[i] = top;
    }
}
