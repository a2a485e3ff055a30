//! `rope` with angles from a table that grows to the longest position seen.

use super::lanes::per_isa;
use crate::cpu::Isa;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::rope::{Rope, RopePairs};
use crit_core::runtime::EngineError;

struct Rotate {
    isa: Isa,
    rope: Rope,
    from: ValueId,
    out: ValueId,
    width: usize,
    /// cos then sin of one position, `[2][pairs]`.
    turns: Vec<f32>,
    position: Option<u32>,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let rope: Rope = node.op::<Rope>().clone();
    let turns = vec![0.0; 2 * rope.inv_freq.len()];
    let width = node.view.write_width(0);
    Ok(Box::new(Rotate { isa: node.isa, rope, from: n.reads[0], out: n.writes[0], width, turns, position: None }))
}

impl Rotate {
    /// Angles in f64: an f32 angle loses all its digits at long context.
    fn turn_to(&mut self, position: u32) {
        if self.position == Some(position) {
            return;
        }
        let (cos, sin) = self.turns.split_at_mut(self.rope.inv_freq.len());
        for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(self.rope.inv_freq.iter()) {
            let (s, c) = (f64::from(position) * f64::from(*freq)).sin_cos();
            *cos = c as f32 * self.rope.magnitude;
            *sin = s as f32 * self.rope.magnitude;
        }
        self.position = Some(position);
    }
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
        for (row, position) in out[..n].chunks_mut(self.width).zip(&cx.batch.positions) {
            self.turn_to(*position);
            let interleaved = self.rope.pairs == RopePairs::Interleaved;
            rotate(self.isa, row, &self.turns, self.rope.head_dim, interleaved);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}

per_isa! {
    /// Turns every head of a row in place.
    fn rotate = rotate_body(row: &mut [f32], turns: &[f32], head_dim: usize, interleaved: bool)
}

#[inline(always)]
fn rotate_body<const FMA: bool>(row: &mut [f32], turns: &[f32], head_dim: usize, interleaved: bool) {
    let (cos, sin) = turns.split_at(turns.len() / 2);
    for head in row.chunks_exact_mut(head_dim) {
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
