//! `altup_predict`, stream by stream; sums in the order of the streams.

use super::rows::make_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::altup_predict::AltupPredict;
use crit_core::runtime::EngineError;

struct Run {
    streams: Vec<ValueId>,
    coefficients: ValueId,
    out: Vec<ValueId>,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (n, count) = (node.view.node, node.op::<AltupPredict>().streams);
    let (streams, coefficients) = (n.reads[..count].to_vec(), n.reads[count]);
    Ok(Box::new(Run { streams, coefficients, out: n.writes.clone(), width: node.view.write_width(0) }))
}

impl Kernel for Run {
    fn name(&self) -> &str {
        "altup_predict"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (n, width) = (self.streams.len(), self.width);
        for (i, out) in self.out.iter().enumerate() {
            make_rows(cx, "altup_predict", *out, width, &|values, t, row| {
                let stream = |j: usize| &values.get(self.streams[j])[t * width..][..width];
                row.copy_from_slice(stream(i));
                let coefficients = &values.get(self.coefficients)[(t * n + i) * n..][..n];
                for (j, c) in coefficients.iter().enumerate() {
                    row.iter_mut().zip(stream(j)).for_each(|(v, x)| *v += c * x);
                }
            })?;
        }
        Ok(())
    }
}
