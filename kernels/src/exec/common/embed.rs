//! `embed`: gathers rows of the table, whatever it is stored in.

use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::embed::Embed;
use crit_core::runtime::EngineError;

struct Gather {
    table: StoredTensor,
    scale: f32,
    past_end: Option<u32>,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let Embed { scale, past_end } = *node.op::<Embed>();
    Ok(Box::new(Gather { table: node.weights[0].clone(), scale, past_end, out: node.view.node.writes[0] }))
}

impl Kernel for Gather {
    fn name(&self) -> &str {
        "embed"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let width = self.table.row_len();
        let mut out = cx.values.take(self.out);
        let mut gather = || {
            for (token, row) in cx.batch.tokens.iter().zip(out.chunks_mut(width)) {
                let past = *token as usize >= self.table.rows();
                let at = self.past_end.filter(|_| past).unwrap_or(*token) as usize;
                self.table.dequant_rows(at..at + 1, row)?;
                if self.scale != 1.0 {
                    row.iter_mut().for_each(|v| *v *= self.scale);
                }
            }
            Ok(())
        };
        let done: Result<(), crit_core::files::FileError> = gather();
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "embed".into(), message: e.to_string() })
    }
}
