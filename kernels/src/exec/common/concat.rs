//! `concat`: copies rows side by side.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Concat {
    a: ValueId,
    b: ValueId,
    out: ValueId,
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let widths = (node.view.read_width(0), node.view.read_width(1));
    Ok(Box::new(Concat { a: n.reads[0], b: n.reads[1], out: n.writes[0], widths }))
}

impl Kernel for Concat {
    fn name(&self) -> &str {
        "concat"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (n, m) = self.widths;
        let rows = cx.values.get(self.a).chunks_exact(n).zip(cx.values.get(self.b).chunks_exact(m));
        for ((a, b), out) in rows.zip(out.chunks_exact_mut(n + m)) {
            out[..n].copy_from_slice(a);
            out[n..].copy_from_slice(b);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
