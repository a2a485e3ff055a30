//! `match_rms` with magnitudes in f64.

use super::rows::make_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::match_rms::MatchRms;
use crit_core::runtime::EngineError;

struct Run {
    like: ValueId,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    Ok(Box::new(Run { like: n.reads[0], from: n.reads[1], out: n.writes[0], width: node.view.write_width(0) }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "match_rms"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        // `out` may be `from`, so its rows are put in place first.
        if self.from != self.out {
            let mut out = cx.values.take(self.out);
            let from = cx.values.get(self.from);
            out[..from.len()].copy_from_slice(from);
            cx.values.put(self.out, out);
        }
        make_rows(cx, "match_rms", self.out, self.width, &|values, t, row| {
            let factor = MatchRms::factor(&values.get(self.like)[t * self.width..][..self.width], row) as f32;
            row.iter_mut().for_each(|v| *v *= factor);
        })
    }
}
