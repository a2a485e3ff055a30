//! `hyper_read` in f32, threaded over rows.

use super::rows::make_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::hyper_read::HyperRead;
use crit_core::runtime::EngineError;

struct Read {
    op: HyperRead,
    x: ValueId,
    gates: ValueId,
    out: ValueId,
    /// Elements of a row of gates, and of what is written.
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, n) = (node.op::<HyperRead>().clone(), node.view.node);
    let widths = (node.view.read_width(1), node.view.write_width(0));
    Ok(Box::new(Read { op, x: n.reads[0], gates: n.reads[1], out: n.writes[0], widths }))
}

impl Kernel for Read {
    fn name(&self) -> &str {
        "hyper_read"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (gates, width) = self.widths;
        let all = width * self.op.streams;
        make_rows(cx, "hyper_read", self.out, width, &|values, i, row| {
            self.op.row(&values.get(self.x)[i * all..][..all], &values.get(self.gates)[i * gates..][..gates], row);
        })
    }
}
