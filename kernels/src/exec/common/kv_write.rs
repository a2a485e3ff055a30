//! `kv_write`: puts the step's keys and values into the cache.

use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Write {
    keys: ValueId,
    values: ValueId,
    key_width: usize,
    value_width: usize,
    state: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let reads = &node.view.node.reads;
    Ok(Box::new(Write {
        keys: reads[0],
        values: reads[1],
        key_width: node.view.read_width(0),
        value_width: node.view.read_width(1),
        state: node.state(),
    }))
}

impl Kernel for Write {
    fn name(&self) -> &str {
        "kv_write"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (keys, values) = (cx.values.get(self.keys), cx.values.get(self.values));
        for seq in &cx.batch.seqs {
            let (first, n) = (seq.first as usize, seq.tokens as usize);
            let keys = &keys[first * self.key_width..(first + n) * self.key_width];
            let values = &values[first * self.value_width..(first + n) * self.value_width];
            cx.kv.append(self.state, seq, keys, values);
        }
        Ok(())
    }
}
