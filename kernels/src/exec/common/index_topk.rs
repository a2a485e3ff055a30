//! `index_topk` in f32: a unit of work is a run of queries of one sequence, for which its keys are read once.

use super::latent_rows::{dot, gather, run};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::index_topk::IndexTopK;
use crit_core::runtime::{EngineError, SeqStep};

/// Queries of a unit of work.
const TILE: usize = 8;

struct Index {
    isa: Isa,
    op: IndexTopK,
    state: StateKey,
    from: ValueId,
    weights: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op = node.op::<IndexTopK>().clone();
    let n = node.view.node;
    let state = node.state();
    Ok(Box::new(Index { isa: node.isa, op, state, from: n.reads[0], weights: n.reads[1], out: n.writes[0] }))
}

impl Kernel for Index {
    fn name(&self) -> &str {
        "index_topk"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut tiles: Vec<(&SeqStep, std::ops::Range<usize>)> = Vec::new();
        for seq in &cx.batch.seqs {
            let n = seq.tokens as usize;
            tiles.extend((0..n).step_by(TILE).map(|first| (seq, first..(first + TILE).min(n))));
        }
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let (q, weights) = (cx.values.get(self.from), cx.values.get(self.weights));
        let parts = Shared::new(&mut out[..n]);
        let kv: &KvStore = cx.kv;
        let done = cx.pool.run(tiles.len(), &|i, _| {
            let (seq, tokens) = &tiles[i];
            self.tile(seq, tokens.clone(), (q, weights), kv, &parts);
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "index_topk".into(), message: e.to_string() })
    }
}

impl Index {
    fn tile(
        &self,
        seq: &SeqStep,
        tokens: std::ops::Range<usize>,
        (q, weights): (&[f32], &[f32]),
        kv: &KvStore,
        out: &Shared<'_, f32>,
    ) {
        let IndexTopK { heads, dim, top_k, every, scale } = self.op;
        let past = seq.past as usize;
        let visible = self.op.visible(past + tokens.end - 1);
        let mut keys = Vec::new();
        if every == 1 {
            run(kv, self.state, seq, 0..visible, &mut keys);
        } else {
            let positions: Vec<usize> = (0..visible).map(|key| (key + 1) * every - 1).collect();
            gather(kv, self.state, seq, &positions, &mut keys);
        }
        let mut scores = Vec::new();
        for t in tokens {
            let token = seq.first as usize + t;
            let q = &q[token * heads * dim..][..heads * dim];
            let weights = &weights[token * heads..][..heads];
            scores.clear();
            scores.extend(keys.chunks_exact(dim).take(self.op.visible(past + t)).map(|key| {
                let heads = q.chunks_exact(dim).zip(weights);
                heads.map(|(q, w)| f64::from(w * dot(self.isa, q, key).max(0.0) * scale)).sum::<f64>() as f32
            }));
            // SAFETY: a tile owns its tokens' lists.
            self.op.choose(&scores, unsafe { out.part(token * top_k, top_k) });
        }
    }
}
