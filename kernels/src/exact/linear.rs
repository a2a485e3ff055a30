//! `linear`: the exact matrix product, and a bias.

use super::gemm::gemm;
use crate::cpu::Isa;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Linear {
    weight: StoredTensor,
    bias: Option<Vec<f32>>,
    isa: Isa,
    from: ValueId,
    out: ValueId,
}

pub(crate) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let n = node.view.node;
    let bias = node.weights.get(1).map(StoredTensor::to_f32);
    Ok(Box::new(Linear { weight: node.weights[0].clone(), bias, isa: node.isa, from: n.reads[0], out: n.writes[0] }))
}

impl Kernel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let mut out = cx.values.take(self.out);
        let (n, k) = (self.weight.rows(), self.weight.row_len());
        let t = cx.values.rows(self.out);
        let read = |rows: std::ops::Range<usize>, out: &mut [f32]| {
            self.weight.dequant_rows(rows, out).expect("rows within the tensor's own count");
        };
        let done = gemm(cx.pool, self.isa, (t, n, k), cx.values.get(self.from), &read, &mut out[..t * n]);
        if let Some(bias) = &self.bias {
            out[..t * n].chunks_mut(n).for_each(|row| row.iter_mut().zip(bias).for_each(|(v, b)| *v += b));
        }
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "linear".into(), message: e.to_string() })
    }
}
