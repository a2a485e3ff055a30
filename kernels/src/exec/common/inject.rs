//! `inject` in f32.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Inject {
    x: ValueId,
    given: ValueId,
    by: ValueId,
    out: ValueId,
    width: usize,
    n: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let r = &node.view.node.reads;
    let (width, n) = (node.view.write_width(0), node.view.read_width(1));
    Ok(Box::new(Inject { x: r[0], given: r[1], by: r[2], out: node.view.node.writes[0], width, n }))
}

impl Kernel for Inject {
    fn name(&self) -> &str {
        "inject"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let len = cx.values.len(self.out);
        if self.x != self.out {
            out[..len].copy_from_slice(cx.values.get(self.x));
        }
        let (n, streams) = (self.n, self.width / self.n);
        let given = cx.values.get(self.given).chunks_exact(n).zip(cx.values.get(self.by).chunks_exact(streams));
        for (row, (given, by)) in out[..len].chunks_exact_mut(self.width).zip(given) {
            for (stream, by) in row.chunks_exact_mut(n).zip(by) {
                stream.iter_mut().zip(given).for_each(|(x, f)| *x += by * f);
            }
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
