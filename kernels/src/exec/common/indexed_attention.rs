//! `indexed_attention`: block keys once a sequence and step, then each query's choice by the op's own rule and attention in
//! f32 over the rows it sees.

use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::indexed_attention::IndexedAttention;
use crit_core::runtime::{EngineError, SeqStep};
use std::sync::Mutex;

struct Attend {
    op: IndexedAttention,
    weight: Vec<f32>,
    q: ValueId,
    index: ValueId,
    out: ValueId,
    kv: StateKey,
    index_keys: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let key = |i: usize| StateKey { use_index: node.at.use_index, state: n.states[i].at() };
    Ok(Box::new(Attend {
        op: node.op::<IndexedAttention>().clone(),
        weight: node.weights[0].to_f32(),
        q: n.reads[0],
        index: n.reads[1],
        out: n.writes[0],
        kv: key(0),
        index_keys: key(1),
    }))
}

/// A query token of one sequence.
struct Query<'a> {
    seq: &'a SeqStep,
    token: usize,
    block_keys: &'a [Vec<f64>],
}

impl Kernel for Attend {
    fn name(&self) -> &str {
        "indexed_attention"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let (q, index) = (cx.values.get(self.q), cx.values.get(self.index));
        let kv: &KvStore = cx.kv;
        let failed =
            |e: crate::cpu::PoolError| EngineError::Kernel { op: "indexed_attention".into(), message: e.to_string() };
        let parts = Shared::new(&mut out[..n]);
        let mut done = Ok(());
        for seq in &cx.batch.seqs {
            let blocks = (seq.past + seq.tokens) as usize / self.op.ratio;
            // Where all blocks are seen there is nothing to choose.
            let blocks = if blocks > self.op.kept { blocks } else { 0 };
            let keys: Vec<Mutex<Vec<f64>>> = (0..blocks).map(|_| Mutex::default()).collect();
            done = done.and_then(|()| {
                cx.pool.run(blocks, &|block, _| {
                    if let Ok(mut key) = keys[block].lock() {
                        *key = self.block_key(kv, seq, block);
                    }
                })
            });
            let block_keys: Vec<Vec<f64>> = keys.into_iter().map(|key| key.into_inner().unwrap_or_default()).collect();
            let heads = self.op.attention.kv_heads;
            done = done.and_then(|()| {
                cx.pool.run(seq.tokens as usize * heads, &|task, _| {
                    let query = Query { seq, token: task / heads, block_keys: &block_keys };
                    self.attend(kv, &query, task % heads, (q, index), &parts);
                })
            });
        }
        cx.values.put(self.out, out);
        done.map_err(failed)
    }
}

impl Attend {
    fn block_key(&self, kv: &KvStore, seq: &SeqStep, block: usize) -> Vec<f64> {
        let dim = self.op.index_dim;
        let mut rows = vec![0.0; self.op.ratio * dim];
        for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
            read_row(kv, KvStore::key_rows, (self.index_keys, 0, dim), seq, block * self.op.ratio + i, row);
        }
        self.op.block_key(rows.chunks_exact(dim), block, &self.weight)
    }

    /// One key/value head's queries of one token.
    fn attend(
        &self,
        kv: &KvStore,
        query: &Query<'_>,
        head: usize,
        (q, index): (&[f32], &[f32]),
        out: &Shared<'_, f32>,
    ) {
        let attention = &self.op.attention;
        let (dk, dv) = (attention.key_dim, attention.value_dim);
        let (seq, at) = (query.seq, query.seq.first as usize + query.token);
        let width = self.op.index_heads * self.op.index_dim;
        let position = seq.past as usize + query.token;
        let seen = self.op.seen(position, &index[at * width..(at + 1) * width], query.block_keys);
        let (mut keys, mut values) = (vec![0.0; seen.len() * dk], vec![0.0; seen.len() * dv]);
        for (i, j) in seen.iter().enumerate() {
            read_row(kv, KvStore::key_rows, (self.kv, head, dk), seq, *j, &mut keys[i * dk..(i + 1) * dk]);
            read_row(kv, KvStore::value_rows, (self.kv, head, dv), seq, *j, &mut values[i * dv..(i + 1) * dv]);
        }
        let group = attention.heads / attention.kv_heads;
        for h in head * group..(head + 1) * group {
            let q = &q[(at * attention.heads + h) * dk..][..dk];
            let dot = |key: &[f32]| key.iter().zip(q).map(|(a, b)| a * b).sum::<f32>() * attention.scale;
            let scores: Vec<f32> = keys.chunks_exact(dk).map(dot).collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            // SAFETY: a task owns its token's rows of its own heads.
            let row = unsafe { out.part((at * attention.heads + h) * dv, dv) };
            row.fill(0.0);
            for (weight, value) in weights.iter().zip(values.chunks_exact(dv)) {
                row.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
            }
            row.iter_mut().for_each(|o| *o = (f64::from(*o) / total) as f32);
        }
    }
}

/// A stored row of one head at one position.
fn read_row<'k>(
    kv: &'k KvStore,
    rows: impl Fn(&'k KvStore, StateKey, u32, usize, usize) -> &'k [u8],
    (state, head, dim): (StateKey, usize, usize),
    seq: &SeqStep,
    position: usize,
    out: &mut [f32],
) {
    let (size, bytes) = (kv.block_tokens(), kv.format().row_bytes(dim));
    let stored = rows(kv, state, seq.blocks[position / size], head, position % size + 1);
    kv.format().read(&stored[position % size * bytes..], dim, out);
}
