//! `carry`: copies rows of the pass before.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Carry {
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    Ok(Box::new(Carry { from: n.reads[0], out: n.writes[0], width: node.view.read_width(0) }))
}

impl Kernel for Carry {
    fn name(&self) -> &str {
        "carry"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let from = cx.values.left(self.from);
        for (row, out) in cx.batch.carry.iter().zip(out.chunks_exact_mut(self.width)) {
            out.copy_from_slice(&from[*row as usize * self.width..][..self.width]);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
