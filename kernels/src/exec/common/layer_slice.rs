//! `layer_slice`: copies the layer's columns.

use super::rows::make_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::layer_slice::LayerSlice;
use crit_core::runtime::EngineError;

struct Run {
    from: ValueId,
    out: ValueId,
    all: usize,
    first: usize,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (view, n) = (&node.view, node.view.node);
    let (all, width) = (view.read_width(0), view.write_width(0));
    Ok(Box::new(Run { from: n.reads[0], out: n.writes[0], all, first: LayerSlice::first(view), width }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "layer_slice"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        make_rows(cx, "layer_slice", self.out, self.width, &|values, t, row| {
            row.copy_from_slice(&values.get(self.from)[t * self.all + self.first..][..self.width]);
        })
    }
}
