//! `repeat`: copies rows side by side.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Repeat {
    from: ValueId,
    out: ValueId,
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let widths = (node.view.read_width(0), node.view.write_width(0));
    Ok(Box::new(Repeat { from: n.reads[0], out: n.writes[0], widths }))
}

impl Kernel for Repeat {
    fn name(&self) -> &str {
        "repeat"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (n, width) = self.widths;
        for (row, out) in cx.values.get(self.from).chunks_exact(n).zip(out.chunks_exact_mut(width)) {
            out.chunks_exact_mut(n).for_each(|out| out.copy_from_slice(row));
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
