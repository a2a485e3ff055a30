//! `mul`: out = a * b.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Mul {
    a: ValueId,
    b: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    Ok(Box::new(Mul { a: n.reads[0], b: n.reads[1], out: n.writes[0] }))
}

impl Kernel for Mul {
    fn name(&self) -> &str {
        "mul"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.a != self.out {
            out[..n].copy_from_slice(cx.values.get(self.a));
        }
        out[..n].iter_mut().zip(cx.values.get(self.b)).for_each(|(o, b)| *o *= b);
        cx.values.put(self.out, out);
        Ok(())
    }
}
