//! `softcap` in f64.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::softcap::Softcap;
use crit_core::runtime::EngineError;

struct Cap {
    cap: f64,
    from: ValueId,
    out: ValueId,
}

pub(crate) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let cap = f64::from(node.op::<Softcap>().cap);
    Ok(Box::new(Cap { cap, from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Cap {
    fn name(&self) -> &str {
        "softcap"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        out[..n].iter_mut().for_each(|v| *v = (self.cap * (f64::from(*v) / self.cap).tanh()) as f32);
        cx.values.put(self.out, out);
        Ok(())
    }
}
