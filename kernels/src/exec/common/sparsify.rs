//! `sparsify` with mean and deviation in f64.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::sparsify::Sparsify;
use crit_core::runtime::EngineError;

struct Run {
    op: Sparsify,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, n) = (node.op::<Sparsify>().clone(), node.view.node);
    Ok(Box::new(Run { op, from: n.reads[0], out: n.writes[0], width: node.view.write_width(0) }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "sparsify"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        by_rows(cx, "sparsify", (self.from, self.out), self.width, &|_, row| {
            let cut = self.op.cut(row) as f32;
            row.iter_mut().for_each(|v| *v = (*v - cut).max(0.0));
        })
    }
}
