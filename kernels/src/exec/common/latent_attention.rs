//! `latent_attention` in f32, softmax with an f64 sum: the rows a tile of queries sees are read once for a run of heads.
//!
//! A query's sums run over what it sees in ascending order, so they depend neither on the tile nor on batch mates.

use super::latent_rows::{add_times, dot, gather, run};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::latent_attention::{LatentAttention, Seen};
use crit_core::runtime::{EngineError, SeqStep};

/// Queries of a tile that see the same rows but for their ends.
const TILE: usize = 16;

/// Heads of a unit of work: enough to make reading rows cheap, few enough to spread over threads.
const HEADS: usize = 8;

struct Attend {
    isa: Isa,
    op: LatentAttention,
    rows: StateKey,
    entries: Option<StateKey>,
    sinks: Vec<f32>,
    from: ValueId,
    list: Option<(ValueId, usize)>,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op = node.op::<LatentAttention>().clone();
    let n = node.view.node;
    let key = |i: usize| StateKey { use_index: node.at.use_index, state: n.states[i].at() };
    Ok(Box::new(Attend {
        isa: node.isa,
        rows: key(0),
        entries: op.entries.map(|_| key(1)),
        sinks: if op.sinks { node.weights[0].to_f32() } else { vec![f32::NEG_INFINITY; op.heads] },
        from: n.reads[0],
        list: op.chosen.then(|| (n.reads[1], node.view.read_width(1))),
        out: n.writes[0],
        op,
    }))
}

/// Queries of one sequence, and a run of heads.
struct Unit<'a> {
    seq: &'a SeqStep,
    tokens: std::ops::Range<usize>,
    heads: std::ops::Range<usize>,
}

impl Kernel for Attend {
    fn name(&self) -> &str {
        "latent_attention"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut units = Vec::new();
        // Queries with lists of their own see rows of their own.
        let size = if self.op.chosen { 1 } else { TILE };
        for seq in &cx.batch.seqs {
            for first in (0..seq.tokens as usize).step_by(size) {
                let tokens = first..(first + size).min(seq.tokens as usize);
                let heads = (0..self.op.heads).step_by(HEADS).map(|h| h..(h + HEADS).min(self.op.heads));
                units.extend(heads.map(|heads| Unit { seq, tokens: tokens.clone(), heads }));
            }
        }
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let q = cx.values.get(self.from);
        let lists = self.list.map(|(id, width)| (cx.values.get(id), width));
        let parts = Shared::new(&mut out[..n]);
        let kv: &KvStore = cx.kv;
        let done = cx.pool.run(units.len(), &|i, _| self.unit(&units[i], (q, lists), kv, &parts));
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "latent_attention".into(), message: e.to_string() })
    }
}

impl Attend {
    fn unit(
        &self,
        unit: &Unit<'_>,
        (q, lists): (&[f32], Option<(&[f32], usize)>),
        kv: &KvStore,
        out: &Shared<'_, f32>,
    ) {
        let op = &self.op;
        let (past, seq) = (unit.seq.past as usize, unit.seq);
        let mut rows = Vec::new();
        let mut entries = Vec::new();
        // Without a list the rows and entries of a tile lie in a row each; with one there is a single query.
        let token = |t: usize| seq.first as usize + t;
        let list = |t: usize| lists.map_or(&[][..], |(lists, width)| &lists[token(t) * width..][..width]);
        let seen: Vec<Seen> = unit.tokens.clone().map(|t| op.seen(past + t, list(t))).collect();
        let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return };
        let base = first.rows.first().copied().unwrap_or(0);
        if op.chosen && op.entries.is_none() {
            gather(kv, self.rows, seq, &first.rows, &mut rows);
        } else if let Some(end) = last.rows.last() {
            run(kv, self.rows, seq, base..end + 1, &mut rows);
        }
        if let Some(key) = self.entries {
            gather(kv, key, seq, &last.entries, &mut entries);
        }
        let dim = op.key_dim;
        let mut scores = Vec::new();
        for (t, seen) in unit.tokens.clone().zip(&seen) {
            // A list's rows are gathered side by side; others lie from the tile's first on.
            let at = if op.chosen && op.entries.is_none() { 0 } else { seen.rows.first().map_or(0, |r| r - base) };
            let own = &rows[at * dim..(at + seen.rows.len()) * dim];
            let more = &entries[..seen.entries.len() * dim];
            for head in unit.heads.clone() {
                let query = &q[(token(t) * op.heads + head) * dim..][..dim];
                // SAFETY: a unit owns its tokens' rows of its own heads.
                let to = unsafe { out.part((token(t) * op.heads + head) * op.value_dim, op.value_dim) };
                let keys = || own.chunks_exact(dim).chain(more.chunks_exact(dim));
                scores.clear();
                scores.extend(keys().map(|key| dot(self.isa, query, key) * op.scale));
                let max = scores.iter().copied().fold(self.sinks[head], f32::max);
                let mut total = f64::from(self.sinks[head] - max).exp();
                for score in &mut scores {
                    *score = f64::from(*score - max).exp() as f32;
                    total += f64::from(*score);
                }
                to.fill(0.0);
                keys().zip(&scores).for_each(|(key, w)| add_times(self.isa, to, *w, &key[..op.value_dim]));
                let scale = (1.0 / total) as f32;
                to.iter_mut().for_each(|v| *v *= scale);
            }
        }
    }
}
