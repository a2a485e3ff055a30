//! `hyper_gates` by the op's own definition, in f64.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::hyper_gates::HyperGates;
use crit_core::runtime::EngineError;

struct Gates {
    op: HyperGates,
    scales: Vec<f32>,
    base: Vec<f32>,
    from: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, n) = (node.op::<HyperGates>().clone(), node.view.node);
    let (scales, base) = (node.weights[0].to_f32(), node.weights[1].to_f32());
    Ok(Box::new(Gates { op, scales, base, from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Gates {
    fn name(&self) -> &str {
        "hyper_gates"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        by_rows(cx, "hyper_gates", (self.from, self.out), self.op.width(), &|_, row| {
            self.op.row(row, &self.scales, &self.base);
        })
    }
}
