//! `mean_streams` in f32.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Mean {
    from: ValueId,
    out: ValueId,
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let widths = (node.view.read_width(0), node.view.write_width(0));
    Ok(Box::new(Mean { from: n.reads[0], out: n.writes[0], widths }))
}

impl Kernel for Mean {
    fn name(&self) -> &str {
        "mean_streams"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (width, n) = self.widths;
        let factor = n as f32 / width as f32;
        for (row, out) in cx.values.get(self.from).chunks_exact(width).zip(out.chunks_exact_mut(n)) {
            out.fill(0.0);
            row.chunks_exact(n).for_each(|stream| out.iter_mut().zip(stream).for_each(|(o, x)| *o += x));
            out.iter_mut().for_each(|o| *o *= factor);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
