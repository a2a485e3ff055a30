//! `head_linear`: head by head in f32, each head's map dequantised once a step.

use super::latent_rows::{add_times, dot};
use crate::cpu::Isa;
use crate::cpu::shared::Shared;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::head_linear::HeadLinear;
use crit_core::runtime::EngineError;

struct Heads {
    isa: Isa,
    op: HeadLinear,
    weight: StoredTensor,
    from: ValueId,
    out: ValueId,
    /// Inputs and outputs of a head.
    sizes: (usize, usize),
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let op = node.op::<HeadLinear>().clone();
    let sizes = (node.view.read_width(0) / op.heads, node.view.write_width(0) / op.heads);
    let (n, weight) = (node.view.node, node.weights[0].clone());
    Ok(Box::new(Heads { isa: node.isa, op, weight, from: n.reads[0], out: n.writes[0], sizes }))
}

impl Kernel for Heads {
    fn name(&self) -> &str {
        "head_linear"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let len = cx.values.len(self.out);
        let x = cx.values.get(self.from);
        let parts = Shared::new(&mut out[..len]);
        let (heads, (k, n)) = (self.op.heads, self.sizes);
        let row_len = if self.op.transposed { n } else { k };
        let done = cx.pool.run(heads, &|head, _| {
            let range = self.op.rows(head, k, n);
            let mut rows = vec![0.0; range.len() * row_len];
            self.weight.dequant_rows(range, &mut rows).expect("rows within the tensor's own count");
            for (t, x) in x.chunks_exact(heads * k).enumerate() {
                let x = &x[head * k..][..k];
                // SAFETY: a task owns its head of every token.
                let to = unsafe { parts.part((t * heads + head) * n, n) };
                if self.op.transposed {
                    to.fill(0.0);
                    rows.chunks_exact(n).zip(x).for_each(|(row, x)| add_times(self.isa, to, *x, row));
                } else {
                    to.iter_mut().zip(rows.chunks_exact(k)).for_each(|(to, row)| *to = dot(self.isa, x, row));
                }
            }
        });
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "head_linear".into(), message: e.to_string() })
    }
}
