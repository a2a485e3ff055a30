//! `layer_norm` with mean and variance in f64.

use super::rows::by_rows;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::model::program::ops::layer_norm::LayerNorm;
use crit_core::runtime::EngineError;

struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f64,
    from: ValueId,
    out: ValueId,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let eps = f64::from(node.op::<LayerNorm>().eps);
    let (weight, bias) = (node.weights[0].to_f32(), node.weights.get(1).map(StoredTensor::to_f32));
    let n = node.view.node;
    Ok(Box::new(Norm { weight, bias, eps, from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Norm {
    fn name(&self) -> &str {
        "layer_norm"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        by_rows(cx, "layer_norm", (self.from, self.out), self.weight.len(), &|_, row| {
            let n = row.len() as f64;
            let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            let (mean, scale) = (mean as f32, (1.0 / (variance + self.eps).sqrt()) as f32);
            row.iter_mut().zip(&self.weight).for_each(|(v, w)| *v = (*v - mean) * scale * w);
            if let Some(bias) = &self.bias {
                row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
        })
    }
}
