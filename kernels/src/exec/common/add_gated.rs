//! `add_gated`: out = a + sigmoid(g) * b.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct AddGated {
    a: ValueId,
    b: ValueId,
    gate: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (n, width) = (node.view.node, node.view.write_width(0));
    Ok(Box::new(AddGated { a: n.reads[0], b: n.reads[1], gate: n.reads[2], out: n.writes[0], width }))
}

impl Kernel for AddGated {
    fn name(&self) -> &str {
        "add_gated"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.a != self.out {
            out[..n].copy_from_slice(cx.values.get(self.a));
        }
        let rows = out[..n].chunks_exact_mut(self.width).zip(cx.values.get(self.b).chunks_exact(self.width));
        for ((out, b), gate) in rows.zip(cx.values.get(self.gate)) {
            let gate = 1.0 / (1.0 + (-gate).exp());
            out.iter_mut().zip(b).for_each(|(o, b)| *o += gate * b);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
