//! `linear` on weights as stored.
//!
//! The forms an activation is multiplied in (bf16, 8-bit codes) are made once per op; weights stay where the file is
//! mapped. A weight in a format without a kernel is dequantised row by row by the exact product.

use crate::cpu::Isa;
use crate::cpu::linear::{ActBuf, Matrix, Product, StoredFormat, format, multiply};
use crate::cpu::shared::Scratch;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;

struct Linear {
    isa: Isa,
    weight: StoredTensor,
    format: &'static StoredFormat,
    bias: Option<Vec<f32>>,
    from: ValueId,
    out: ValueId,
    act: ActBuf,
    scratch: Option<Scratch>,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let weight = node.weights[0].clone();
    let known = format(weight.dtype().name());
    let Some(format) = known.filter(|f| weight.row_len().is_multiple_of(f.block_elems)) else {
        return crate::exact::linear::lower(node);
    };
    let n = node.view.node;
    let bias = node.weights.get(1).map(StoredTensor::to_f32);
    Ok(Box::new(Linear {
        isa: node.isa,
        format,
        bias,
        from: n.reads[0],
        out: n.writes[0],
        act: ActBuf::default(),
        scratch: None,
        weight,
    }))
}

impl Kernel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn prepare(&mut self, tokens: usize, _: usize) -> Result<u64, EngineError> {
        let k = self.weight.row_len();
        let kind = (self.format.act)(self.isa);
        self.act = ActBuf::with_capacity(tokens * k, &[kind]);
        Ok(self.act.bytes() as u64)
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (n, k) = (self.weight.rows(), self.weight.row_len());
        let t = cx.values.rows(self.out);
        let threads = cx.pool.threads();
        let scratch = self.scratch.get_or_insert_with(|| Scratch::new(threads, self.format.scratch_bytes(k, self.isa)));
        let mut out = cx.values.take(self.out);
        let x = cx.values.get(self.from);
        let weight = Matrix::new(self.format, n, k, self.weight.bytes()).expect("lowering checked sizes and format");
        let mut run = || {
            let act = self.act.fill((self.format.act)(self.isa), x, k, self.isa, cx.pool)?;
            let product = Product { weight, bias: self.bias.as_deref(), out: &mut out[..t * n] };
            multiply(self.isa, cx.pool, scratch, act, &mut [product])
        };
        let done = run();
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "linear".into(), message: e.to_string() })
    }
}
