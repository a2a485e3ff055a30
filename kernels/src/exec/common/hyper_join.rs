//! `hyper_join` in f32, threaded over tokens.

use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::hyper_join::HyperJoin;
use crit_core::runtime::EngineError;

struct Join {
    op: HyperJoin,
    x: ValueId,
    y: ValueId,
    gates: ValueId,
    out: ValueId,
    /// Elements of a sublayer's row, and of a row of gates.
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, n) = (node.op::<HyperJoin>().clone(), node.view.node);
    let widths = (node.view.read_width(1), node.view.read_width(2));
    Ok(Box::new(Join { op, x: n.reads[0], y: n.reads[1], gates: n.reads[2], out: n.writes[0], widths }))
}

impl Kernel for Join {
    fn name(&self) -> &str {
        "hyper_join"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (n, gates) = self.widths;
        let width = n * self.op.streams;
        let mut out = cx.values.take(self.out);
        let len = cx.values.len(self.out);
        if self.x != self.out {
            out[..len].copy_from_slice(cx.values.get(self.x));
        }
        let (y, g) = (cx.values.get(self.y), cx.values.get(self.gates));
        let parts = Shared::new(&mut out[..len]);
        let done = cx.pool.run(len / width, &|t, _| {
            // SAFETY: a task owns its token's row.
            let row = unsafe { parts.part(t * width, width) };
            self.op.row(row, &y[t * n..][..n], &g[t * gates..][..gates]);
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "hyper_join".into(), message: e.to_string() })
    }
}
