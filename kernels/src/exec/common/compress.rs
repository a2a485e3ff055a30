//! `compress`: tokens that close a window, spread over threads; a window's rows are read once.

use super::latent_rows::run_of;
use super::rows::place_rows;
use crate::exec::kv::KvStore;
use crate::exec::step::{Kernel, Lowering, StateKey, StepCx};
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::compress::Compress;
use crit_core::runtime::EngineError;

struct Windows {
    op: Compress,
    places: Vec<f32>,
    state: StateKey,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let (op, places, state) = (node.op::<Compress>().clone(), node.weights[0].to_f32(), node.state());
    Ok(Box::new(Windows { op, places, state, out: node.view.node.writes[0] }))
}

impl Kernel for Windows {
    fn name(&self) -> &str {
        "compress"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (op, width) = (&self.op, self.op.width());
        let tokens: Vec<_> = cx.batch.seqs.iter().flat_map(|seq| (0..seq.tokens).map(move |t| (seq, t))).collect();
        place_rows(cx, "compress", self.out, op.dim, &|kv: &KvStore, row, out| {
            let (seq, t) = tokens[row];
            let position = (seq.past + t) as usize;
            if !(position + 1).is_multiple_of(op.rate) {
                return out.fill(0.0);
            }
            let first = (position + 1).saturating_sub(op.reach());
            let (mut rows, mut scores) = (Vec::new(), Vec::new());
            run_of(kv, self.state, seq, first..position + 1, (&mut rows, &mut scores));
            let at = |p: usize| (p - first) * width..(p - first + 1) * width;
            op.entry(position, &self.places, |p| (&rows[at(p)], &scores[at(p)]), out);
        })
    }
}
