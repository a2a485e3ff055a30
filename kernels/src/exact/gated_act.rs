//! `gated_act` by the op's own definition, in f64.

use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::gated_act::GatedAct;
use crit_core::runtime::EngineError;

struct Gate {
    op: GatedAct,
    gate: ValueId,
    up: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let op = node.op::<GatedAct>().clone();
    Ok(Box::new(Gate { op, gate: n.reads[0], up: n.reads[1], out: n.writes[0] }))
}

impl Kernel for Gate {
    fn name(&self) -> &str {
        "gated_act"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        const CHUNK: usize = 4096;
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
            for (v, u) in part.iter_mut().zip(&up[start..]) {
                let (gate, up) = self.op.bound(*v, *u);
                *v = (self.op.activation.eval(f64::from(gate)) * f64::from(up)) as f32;
            }
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "gated_act".into(), message: e.to_string() })
    }
}
