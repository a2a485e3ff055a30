//! `ngram_embed`: gathers rows of the table's parts, whatever they are stored in. Only the rows hit are read.

use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::files::{FileError, StoredTensor};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::ngram_embed::NgramEmbed;
use crit_core::runtime::EngineError;

struct Gather {
    op: NgramEmbed,
    parts: Vec<StoredTensor>,
    width: usize,
    out: ValueId,
    state: StateKey,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, state) = (node.op::<NgramEmbed>().clone(), node.state());
    let (width, out) = (node.view.write_width(0), node.view.node.writes[0]);
    Ok(Box::new(Gather { op, width, out, state, parts: node.weights }))
}

impl Gather {
    fn token(&self, token: u32, before: &[f32], out: &mut [f32]) -> Result<(), FileError> {
        let dim = self.parts[0].row_len();
        for (row, out) in self.op.rows(token, before).into_iter().zip(out.chunks_exact_mut(dim)) {
            let mut row = row as usize;
            for part in &self.parts {
                if row < part.rows() {
                    part.dequant_rows(row..row + 1, out)?;
                    break;
                }
                row -= part.rows();
            }
        }
        Ok(())
    }
}

impl Kernel for Gather {
    fn name(&self) -> &str {
        "ngram_embed"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let states = cx.recurrent.slots_of(self.state);
        let mut done = Ok(());
        for seq in &cx.batch.seqs {
            let range = seq.slot as usize * states.elements..(seq.slot as usize + 1) * states.elements;
            for t in 0..seq.tokens as usize {
                if seq.trial > 0 && t == (seq.tokens - seq.trial) as usize {
                    states.saved[range.clone()].copy_from_slice(&states.now[range.clone()]);
                }
                let at = seq.first as usize + t;
                let token = cx.batch.tokens[at];
                let row = &mut out[at * self.width..(at + 1) * self.width];
                done = done.and(self.token(token, &states.now[range.clone()], row));
                NgramEmbed::remember(token, &mut states.now[range.clone()]);
            }
        }
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "ngram_embed".into(), message: e.to_string() })
    }
}
