//! `gated_act` in f32.

use super::lanes::{gelu_tanh, per_isa, sigmoid, silu};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::gated_act::{Activation, GatedAct};
use crit_core::runtime::EngineError;

/// Elements of a chunk of work: below this a thread costs more than it saves.
const CHUNK: usize = 8_192;

struct Gate {
    isa: Isa,
    op: GatedAct,
    gate: ValueId,
    up: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let op = node.op::<GatedAct>().clone();
    Ok(Box::new(Gate { isa: node.isa, op, gate: n.reads[0], up: n.reads[1], out: n.writes[0] }))
}

impl Kernel for Gate {
    fn name(&self) -> &str {
        "gated_act"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.gate != self.out {
            out[..n].copy_from_slice(cx.values.get(self.gate));
        }
        let up = cx.values.get(self.up);
        let parts = Shared::new(&mut out[..n]);
        let done = cx.pool.run(n.div_ceil(CHUNK), &|chunk, _| {
            let start = chunk * CHUNK;
            let len = CHUNK.min(n - start);
            // SAFETY: chunks are disjoint.
            let part = unsafe { parts.part(start, len) };
            let up = &up[start..start + len];
            let bounded: Vec<f32>;
            let up = match self.op.limit {
                None => up,
                Some(_) => {
                    bounded = part
                        .iter_mut()
                        .zip(up)
                        .map(|(g, u)| {
                            let (gate, up) = self.op.bound(*g, *u);
                            *g = gate;
                            up
                        })
                        .collect();
                    &bounded
                }
            };
            match self.op.activation {
                Activation::Silu => gate_silu(self.isa, part, up),
                Activation::Sigmoid => gate_sigmoid(self.isa, part, up),
                Activation::GeluTanh => gate_gelu(self.isa, part, up),
                Activation::Tanh => part.iter_mut().zip(up).for_each(|(g, u)| *g = g.tanh() * u),
                Activation::Relu2 => part.iter_mut().zip(up).for_each(|(g, u)| *g = g.max(0.0) * g.max(0.0) * u),
            }
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "gated_act".into(), message: e.to_string() })
    }
}

per_isa! {
    /// gate = silu(gate) * up.
    fn gate_silu = silu_body(gate: &mut [f32], up: &[f32])
}

per_isa! {
    /// gate = gelu(gate) * up.
    fn gate_gelu = gelu_body(gate: &mut [f32], up: &[f32])
}

per_isa! {
    /// gate = sigmoid(gate) * up.
    fn gate_sigmoid = sigmoid_body(gate: &mut [f32], up: &[f32])
}

#[inline(always)]
fn sigmoid_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = sigmoid::<FMA>(*g) * u);
}

#[inline(always)]
fn silu_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = silu::<FMA>(*g) * u);
}

#[inline(always)]
fn gelu_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = gelu_tanh::<FMA>(*g) * u);
}
