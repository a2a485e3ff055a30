//! `gated_norm` in f32 with f64 sums, threaded over rows.

use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::gated_act::Activation;
use crit_core::model::program::ops::gated_norm::GatedNorm;
use crit_core::runtime::EngineError;

/// Elements of a chunk of work: below this a thread costs more than it saves.
const CHUNK: usize = 8_192;

struct Norm {
    op: GatedNorm,
    weight: Vec<f32>,
    width: usize,
    from: ValueId,
    gate: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (n, width) = (node.view.node, node.view.write_width(0));
    let weight = node.weights[0].to_f32();
    let op = node.op::<GatedNorm>().clone();
    Ok(Box::new(Norm { op, weight, width, from: n.reads[0], gate: n.reads[1], out: n.writes[0] }))
}

impl Kernel for Norm {
    fn name(&self) -> &str {
        "gated_norm"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        let gate = cx.values.get(self.gate);
        let size = (CHUNK / self.width).max(1) * self.width;
        let parts = Shared::new(&mut out[..n]);
        let done = cx.pool.run(n.div_ceil(size), &|chunk, _| {
            let start = chunk * size;
            // SAFETY: chunks are disjoint.
            let part = unsafe { parts.part(start, size.min(n - start)) };
            for (row, gate) in part.chunks_mut(self.width).zip(gate[start..].chunks(self.width)) {
                self.row(row, gate);
            }
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "gated_norm".into(), message: e.to_string() })
    }
}

impl Norm {
    fn row(&self, row: &mut [f32], gate: &[f32]) {
        let size = self.op.group;
        for (g, (x, gate)) in row.chunks_mut(size).zip(gate.chunks(size)).enumerate() {
            let weight = &self.weight[g * size % self.weight.len()..][..size];
            if self.op.gate_first {
                x.iter_mut().zip(gate).for_each(|(x, g)| *x *= act(self.op.activation, *g));
            }
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / size as f64;
            let scale = (1.0 / (mean + f64::from(self.op.eps)).sqrt()) as f32;
            x.iter_mut().zip(weight).for_each(|(x, w)| *x *= scale * w);
            if !self.op.gate_first {
                x.iter_mut().zip(gate).for_each(|(x, g)| *x *= act(self.op.activation, *g));
            }
        }
    }
}

fn act(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        other => other.eval(f64::from(x)) as f32,
    }
}
