//! `stream_gate` by the op's own gate.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::stream_gate::StreamGate;
use crit_core::runtime::EngineError;

struct Gate {
    key: ValueId,
    query: ValueId,
    value: ValueId,
    out: ValueId,
    n: usize,
    streams: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (n, r) = (node.view.read_width(2), &node.view.node.reads);
    let streams = node.view.write_width(0) / n;
    Ok(Box::new(Gate { key: r[0], query: r[1], value: r[2], out: node.view.node.writes[0], n, streams }))
}

impl Kernel for Gate {
    fn name(&self) -> &str {
        "stream_gate"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let value = cx.values.get(self.value);
        let pairs = cx.values.get(self.key).chunks_exact(self.n).zip(cx.values.get(self.query).chunks_exact(self.n));
        for (i, ((key, query), out)) in pairs.zip(out.chunks_exact_mut(self.n)).enumerate() {
            let gate = StreamGate::gate(key, query) as f32;
            let value = &value[i / self.streams * self.n..][..self.n];
            out.iter_mut().zip(value).for_each(|(o, v)| *o = gate * v);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
