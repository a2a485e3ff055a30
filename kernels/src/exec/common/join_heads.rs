//! `join_heads`: copies heads, the end behind each.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::join_heads::JoinHeads;
use crit_core::runtime::EngineError;

struct Join {
    /// Heads in a row that have one end.
    heads: usize,
    a: ValueId,
    b: ValueId,
    out: ValueId,
    /// Elements of a head of a, and of b.
    widths: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let JoinHeads { heads, shared } = *node.op::<JoinHeads>();
    let (n, ends) = (node.view.node, if shared { 1 } else { heads });
    let widths = (node.view.read_width(0) / heads, node.view.read_width(1) / ends);
    let heads = if shared { heads } else { 1 };
    Ok(Box::new(Join { heads, a: n.reads[0], b: n.reads[1], out: n.writes[0], widths }))
}

impl Kernel for Join {
    fn name(&self) -> &str {
        "join_heads"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (n, m) = self.widths;
        let (a, b) = (cx.values.get(self.a), cx.values.get(self.b));
        for (i, (a, out)) in a.chunks_exact(n).zip(out.chunks_exact_mut(n + m)).enumerate() {
            out[..n].copy_from_slice(a);
            out[n..].copy_from_slice(&b[i / self.heads * m..][..m]);
        }
        cx.values.put(self.out, out);
        Ok(())
    }
}
