//! `act` by the op's own definition.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::act::Act;
use crit_core::model::program::ops::gated_act::Activation;
use crit_core::runtime::EngineError;

struct Apply {
    activation: Activation,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let activation = node.op::<Act>().activation;
    let n = node.view.node;
    Ok(Box::new(Apply { activation, from: n.reads[0], out: n.writes[0], width: node.view.write_width(0) }))
}

impl Kernel for Apply {
    fn name(&self) -> &str {
        "act"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        by_rows(cx, "act", (self.from, self.out), self.width, &|_, row| {
            row.iter_mut().for_each(|v| *v = self.activation.eval(f64::from(*v)) as f32);
        })
    }
}
