//! `scale_by_position` with the factor in f64.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::scale_by_position::ScaleByPosition;
use crit_core::runtime::EngineError;

struct Run {
    op: ScaleByPosition,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, n) = (node.op::<ScaleByPosition>().clone(), node.view.node);
    Ok(Box::new(Run { op, from: n.reads[0], out: n.writes[0], width: node.view.write_width(0) }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "scale_by_position"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let positions = &cx.batch.positions;
        by_rows(cx, "scale_by_position", (self.from, self.out), self.width, &|t, row| {
            let factor = self.op.factor(positions[t] as usize) as f32;
            row.iter_mut().for_each(|v| *v *= factor);
        })
    }
}
