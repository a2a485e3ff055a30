//! `rope` with angles from a table that grows to the longest position seen and is shared by all ops that turn alike.

use super::lanes::per_isa;
use crate::cpu::Isa;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::rope::{Rope, RopePairs};
use crit_core::runtime::EngineError;
use std::sync::{Arc, Mutex, PoisonError};

struct Rotate {
    isa: Isa,
    rope: Rope,
    from: ValueId,
    out: ValueId,
    width: usize,
    table: Arc<Mutex<Turns>>,
    /// The table of long sequences.
    long: Option<(usize, Arc<Mutex<Turns>>)>,
}

/// cos then sin of every position up to the longest seen, `[positions][2][pairs]`.
pub struct Turns {
    inv_freq: Arc<[f32]>,
    magnitude: f32,
    values: Vec<f32>,
    positions: usize,
}

/// Tables by the frequencies they are made from, so that queries and keys of all layers share one.
#[derive(Default)]
pub struct TurnTables(Mutex<Vec<Shared>>);

/// A table and what it was made from.
struct Shared {
    inv_freq: Arc<[f32]>,
    magnitude: f32,
    table: Arc<Mutex<Turns>>,
}

impl TurnTables {
    fn of(&self, inv_freq: &Arc<[f32]>, magnitude: f32) -> Arc<Mutex<Turns>> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |s: &&Shared| s.inv_freq == *inv_freq && s.magnitude == magnitude;
        if let Some(shared) = tables.iter().find(same) {
            return shared.table.clone();
        }
        let turns = Turns { inv_freq: inv_freq.clone(), magnitude, values: Vec::new(), positions: 0 };
        let table = Arc::new(Mutex::new(turns));
        tables.push(Shared { inv_freq: inv_freq.clone(), magnitude, table: table.clone() });
        table
    }
}

impl Turns {
    /// Angles in f64: an f32 angle loses all its digits at long context.
    fn reach(&mut self, positions: usize) {
        for position in self.positions..positions {
            let turn = |freq: &f32| (position as f64 * f64::from(*freq)).sin_cos();
            let turns: Vec<(f64, f64)> = self.inv_freq.iter().map(turn).collect();
            self.values.extend(turns.iter().map(|(_, cos)| *cos as f32 * self.magnitude));
            self.values.extend(turns.iter().map(|(sin, _)| *sin as f32 * self.magnitude));
        }
        self.positions = self.positions.max(positions);
    }
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let rope: Rope = node.op::<Rope>().clone();
    let table = node.turns.of(&rope.inv_freq, rope.magnitude);
    let long = rope.long.as_ref().map(|long| (long.above, node.turns.of(&long.inv_freq, rope.magnitude)));
    let width = node.view.write_width(0);
    Ok(Box::new(Rotate { isa: node.isa, rope, from: n.reads[0], out: n.writes[0], width, table, long }))
}

impl Kernel for Rotate {
    fn name(&self) -> &str {
        "rope"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        let size = 2 * self.rope.inv_freq.len();
        let interleaved = self.rope.pairs == RopePairs::Interleaved;
        for seq in &cx.batch.seqs {
            let table = match &self.long {
                Some((above, long)) if seq.length as usize > *above => long,
                _ => &self.table,
            };
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            table.reach((seq.past + seq.tokens) as usize);
            let rows = out[seq.first as usize * self.width..].chunks_mut(self.width);
            for (row, position) in rows.zip(seq.past..seq.past + seq.tokens) {
                let turns = &table.values[self.rope.turn(position as usize) * size..][..size];
                let sizes = (self.rope.head_dim, self.rope.offset);
                rotate(self.isa, row, turns, sizes, interleaved);
            }
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}

per_isa! {
    /// Turns every head of a row in place.
    fn rotate = rotate_body(row: &mut [f32], turns: &[f32], sizes: (usize, usize), interleaved: bool)
}

#[inline(always)]
fn rotate_body<const FMA: bool>(row: &mut [f32], turns: &[f32], sizes: (usize, usize), interleaved: bool) {
    let (cos, sin) = turns.split_at(turns.len() / 2);
    let (head_dim, offset) = sizes;
    for head in row.chunks_exact_mut(head_dim) {
        let head = &mut head[offset..];
        if interleaved {
            for ((pair, c), s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * c - b * s;
                pair[1] = b * c + a * s;
            }
        } else {
            let (first, second) = head[..2 * cos.len()].split_at_mut(cos.len());
            for (((x, y), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let (a, b) = (*x, *y);
                *x = a * c - b * s;
                *y = b * c + a * s;
            }
        }
    }
}
