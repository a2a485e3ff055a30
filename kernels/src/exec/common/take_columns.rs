//! `take_columns`: copies columns of groups.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::take_columns::TakeColumns;
use crit_core::runtime::EngineError;

struct Take {
    op: TakeColumns,
    from: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    Ok(Box::new(Take { op: node.op::<TakeColumns>().clone(), from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Take {
    fn name(&self) -> &str {
        "take_columns"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let TakeColumns { group, at, len } = self.op;
        for (group, out) in cx.values.get(self.from).chunks_exact(group).zip(out.chunks_exact_mut(len)) {
            out.copy_from_slice(&group[at..at + len]);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
