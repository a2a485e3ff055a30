//! `scale`: out = x times a factor, or times a factor a channel.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::scale::Scale;
use crit_core::runtime::EngineError;

struct Multiply {
    /// One for all channels, or one each.
    factors: Vec<f32>,
    from: ValueId,
    out: ValueId,
    width: usize,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let factor = node.op::<Scale>().factor;
    let weight = node.weights.first().map_or(vec![1.0], StoredTensor::to_f32);
    let factors = weight.iter().map(|w| w * factor).collect();
    let n = node.view.node;
    Ok(Box::new(Multiply { factors, from: n.reads[0], out: n.writes[0], width: node.view.write_width(0) }))
}

impl Kernel for Multiply {
    fn name(&self) -> &str {
        "scale"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        by_rows(cx, "scale", (self.from, self.out), self.width, &|_, row| match self.factors[..] {
            [factor] => row.iter_mut().for_each(|v| *v *= factor),
            _ => row.iter_mut().zip(&self.factors).for_each(|(v, f)| *v *= f),
        })
    }
}
