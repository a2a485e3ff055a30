//! `rms_norm` in f32 with lane-wise partial sums, threaded over rows when there are many.

use super::lanes::{dot, per_isa};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::rms_norm::RmsNorm;
use crit_core::runtime::EngineError;

/// Elements of a chunk of work: below this a thread costs more than it saves.
const CHUNK: usize = 16_384;

struct Norm {
    isa: Isa,
    factors: Vec<f32>,
    group: usize,
    eps: f32,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op: &RmsNorm = node.op();
    let factors = match node.weights.first() {
        Some(weight) => weight.to_f32().iter().map(|w| w + op.offset).collect(),
        None => vec![1.0; op.group],
    };
    let (n, width) = (node.view.node, node.view.write_width(0));
    let group = op.group;
    Ok(Box::new(Norm { isa: node.isa, factors, group, eps: op.eps, from: n.reads[0], out: n.writes[0], width }))
}

impl Kernel for Norm {
    fn name(&self) -> &str {
        "rms_norm"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        let from = if self.from == self.out { None } else { Some(cx.values.get(self.from)) };
        let size = (CHUNK / self.width).max(1) * self.width;
        let parts = Shared::new(&mut out[..n]);
        let done = cx.pool.run(n.div_ceil(size), &|chunk, _| {
            let start = chunk * size;
            // SAFETY: chunks are disjoint.
            let part = unsafe { parts.part(start, size.min(n - start)) };
            if let Some(from) = from {
                part.copy_from_slice(&from[start..start + part.len()]);
            }
            norm_rows(self.isa, part, &self.factors, self.group, self.eps);
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "rms_norm".into(), message: e.to_string() })
    }
}

per_isa! {
    /// Norms every group of elements in place; factors repeat.
    fn norm_rows = norm_body(rows: &mut [f32], factors: &[f32], group: usize, eps: f32)
}

#[inline(always)]
fn norm_body<const FMA: bool>(rows: &mut [f32], factors: &[f32], group: usize, eps: f32) {
    for part in rows.chunks_exact_mut(factors.len()) {
        for (part, factors) in part.chunks_exact_mut(group).zip(factors.chunks_exact(group)) {
            let scale = 1.0 / (dot::<FMA>(part, part) / group as f32 + eps).sqrt();
            for (v, f) in part.iter_mut().zip(factors) {
                *v = *v * scale * f;
            }
        }
    }
}
