//! Exact attention: scores and sums in f32 over the stored rows, softmax with an f64 sum, two passes (no rescaling).
//!
//! A chunk of work is one key/value head of one sequence for a tile of its queries. Keys and values of the visible
//! positions are read once a tile.

use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::attention::Attention;
use crit_core::runtime::{EngineError, SeqStep};

/// Query positions in a tile.
const TILE: usize = 32;

struct Attend {
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
    Ok(Box::new(Attend { op, state: node.state(), from: n.reads[0], out: n.writes[0], sinks }))
}

/// A tile of one sequence's queries.
struct Tile<'a> {
    seq: &'a SeqStep,
    /// Tokens within the sequence's part of the step.
    tokens: std::ops::Range<usize>,
    kv_head: usize,
}

impl Kernel for Attend {
    fn name(&self) -> &str {
        "attention"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut tiles = Vec::new();
        for seq in &cx.batch.seqs {
            let n = seq.tokens as usize;
            for first in (0..n).step_by(TILE) {
                let tokens = first..(first + TILE).min(n);
                tiles.extend((0..self.op.kv_heads).map(|kv_head| Tile { seq, tokens: tokens.clone(), kv_head }));
            }
        }
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let q = cx.values.get(self.from);
        let parts = Shared::new(&mut out[..n]);
        let kv: &KvStore = cx.kv;
        let done = cx.pool.run(tiles.len(), &|i, _| self.tile(&tiles[i], q, kv, &parts));
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "attention".into(), message: e.to_string() })
    }
}

impl Attend {
    fn tile(&self, tile: &Tile<'_>, q: &[f32], kv: &KvStore, out: &Shared<'_, f32>) {
        let op = &self.op;
        let past = tile.seq.past as usize;
        let first = op.first_visible(past + tile.tokens.start);
        let end = past + tile.tokens.end;
        let keys = read(kv, self.state, tile, first, end, op.key_dim, KvStore::key_rows);
        let values = read(kv, self.state, tile, first, end, op.value_dim, KvStore::value_rows);
        let group = op.heads / op.kv_heads;
        let mut scores = Vec::new();
        for t in tile.tokens.clone() {
            let position = past + t;
            let visible = op.first_visible(position) - first..position + 1 - first;
            for head in tile.kv_head * group..(tile.kv_head + 1) * group {
                let token = tile.seq.first as usize + t;
                let query = &q[(token * op.heads + head) * op.key_dim..][..op.key_dim];
                scores.clear();
                scores.extend(visible.clone().map(|j| self.score(query, &keys[j * op.key_dim..][..op.key_dim])));
                let max = scores.iter().copied().fold(self.sinks[head], f32::max);
                let mut total = f64::from(self.sinks[head] - max).exp();
                for score in &mut scores {
                    *score = f64::from(*score - max).exp() as f32;
                    total += f64::from(*score);
                }
                // SAFETY: a tile owns its tokens' rows of its own heads.
                let row = unsafe { out.part((token * op.heads + head) * op.value_dim, op.value_dim) };
                row.fill(0.0);
                for (weight, j) in scores.iter().zip(visible.clone()) {
                    let value = &values[j * op.value_dim..][..op.value_dim];
                    row.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
                }
                let scale = (1.0 / total) as f32;
                row.iter_mut().for_each(|o| *o *= scale);
            }
        }
    }

    fn score(&self, query: &[f32], key: &[f32]) -> f32 {
        let score = dot(query, key) * self.op.scale;
        match self.op.softcap {
            Some(cap) => cap * (score / cap).tanh(),
            None => score,
        }
    }
}

/// Eight partial sums, which the compiler keeps in a register.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a8.zip(b8) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Rows of positions `first..end` of the tile's head as f32.
fn read<'k>(
    kv: &'k KvStore,
    state: StateKey,
    tile: &Tile<'_>,
    first: usize,
    end: usize,
    dim: usize,
    rows: impl Fn(&'k KvStore, StateKey, u32, usize, usize) -> &'k [u8],
) -> Vec<f32> {
    let size = kv.block_tokens();
    let row_bytes = kv.format().row_bytes(dim);
    let mut out = vec![0.0; (end - first) * dim];
    let mut position = first;
    while position < end {
        let offset = position % size;
        let count = (size - offset).min(end - position);
        let bytes = rows(kv, state, tile.seq.blocks[position / size], tile.kv_head, offset + count);
        let to = &mut out[(position - first) * dim..][..count * dim];
        kv.format().read(&bytes[offset * row_bytes..], dim, to);
        position += count;
    }
    out
}
