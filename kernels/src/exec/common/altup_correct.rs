//! `altup_correct`, stream by stream.

use super::rows::make_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::altup_correct::AltupCorrect;
use crit_core::runtime::EngineError;

struct Run {
    predicted: Vec<ValueId>,
    active: usize,
    done: ValueId,
    coefficients: ValueId,
    out: Vec<ValueId>,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let AltupCorrect { streams, active } = *node.op::<AltupCorrect>();
    let n = node.view.node;
    Ok(Box::new(Run {
        predicted: n.reads[..streams].to_vec(),
        active,
        done: n.reads[streams],
        coefficients: n.reads[streams + 1],
        out: n.writes.clone(),
        width: node.view.write_width(0),
    }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "altup_correct"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (n, width) = (self.predicted.len(), self.width);
        for (i, out) in self.out.iter().enumerate() {
            make_rows(cx, "altup_correct", *out, width, &|values, t, row| {
                let of = |value: ValueId| &values.get(value)[t * width..][..width];
                let factor = 1.0 + values.get(self.coefficients)[t * n + i];
                let pairs = of(self.done).iter().zip(of(self.predicted[self.active]));
                for ((v, p), (y, a)) in row.iter_mut().zip(of(self.predicted[i])).zip(pairs) {
                    *v = p + factor * (y - a);
                }
            })?;
        }
        Ok(())
    }
}
