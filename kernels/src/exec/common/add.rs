//! `add`: out = a + scale * b.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::add as op;
use crit_core::runtime::EngineError;

struct Add {
    a: ValueId,
    b: ValueId,
    scale: f32,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    Ok(Box::new(Add { a: n.reads[0], b: n.reads[1], scale: node.op::<op::Add>().scale, out: n.writes[0] }))
}

impl Kernel for Add {
    fn name(&self) -> &str {
        "add"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (n, scale) = (cx.values.len(self.out), self.scale);
        if self.a == self.out {
            out[..n].iter_mut().zip(cx.values.get(self.b)).for_each(|(o, b)| *o += scale * b);
        } else {
            let pairs = cx.values.get(self.a).iter().zip(cx.values.get(self.b));
            out[..n].iter_mut().zip(pairs).for_each(|(o, (a, b))| *o = a + scale * b);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
