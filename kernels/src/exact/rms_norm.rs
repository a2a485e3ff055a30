//! `rms_norm` with the mean of squares in f64.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::rms_norm::RmsNorm;
use crit_core::runtime::EngineError;

struct Norm {
    factors: Vec<f32>,
    group: usize,
    eps: f64,
    from: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op: &RmsNorm = node.op();
    let factors = match node.weights.first() {
        Some(weight) => weight.to_f32().iter().map(|w| w + op.offset).collect(),
        None => vec![1.0; op.group],
    };
    let n = node.view.node;
    let group = op.group;
    Ok(Box::new(Norm { factors, group, eps: f64::from(op.eps), from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Norm {
    fn name(&self) -> &str {
        "rms_norm"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        for (i, group) in out[..n].chunks_mut(self.group).enumerate() {
            let factors = &self.factors[i * self.group % self.factors.len()..];
            let squares: f64 = group.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let scale = (1.0 / (squares / group.len() as f64 + self.eps).sqrt()) as f32;
            group.iter_mut().zip(factors).for_each(|(v, f)| *v = *v * scale * f);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
