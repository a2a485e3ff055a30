//! `add_positions`: adds rows of the table, whatever it is stored in.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::{FileError, StoredTensor};
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Gather {
    table: StoredTensor,
    row: Vec<f32>,
    from: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (table, n) = (node.weights[0].clone(), node.view.node);
    Ok(Box::new(Gather { row: vec![0.0; table.row_len()], table, from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Gather {
    fn name(&self) -> &str {
        "add_positions"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (width, table) = (self.table.row_len(), &self.table);
        let mut out = cx.values.take(self.out);
        let n = cx.values.len(self.out);
        if self.from != self.out {
            out[..n].copy_from_slice(cx.values.get(self.from));
        }
        let done = cx.batch.positions.iter().zip(out.chunks_mut(width)).try_for_each(|(position, x)| {
            let at = *position as usize;
            table.dequant_rows(at..at + 1, &mut self.row)?;
            x.iter_mut().zip(&self.row).for_each(|(x, p)| *x += p);
            Ok(())
        });
        cx.values.put(self.out, out);
        done.map_err(|e: FileError| EngineError::Kernel { op: "add_positions".into(), message: e.to_string() })
    }
}
