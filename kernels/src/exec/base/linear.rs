//! `linear` on weights as stored.
//!
//! The forms an activation is multiplied in (bf16, 8-bit codes) are shared by the products that read it; weights stay
//! where the file is mapped. A weight in a format without a kernel is dequantised row by row by the exact product.

use crate::cpu::Isa;
use crate::cpu::linear::{Matrix, Product, StoredFormat, format};
use crate::exec::products::Products;
use crate::exec::step::{Kernel, Lowering, StepCx};
use crit_core::files::StoredTensor;
use crit_core::model::program::ValueId;
use crit_core::runtime::EngineError;
use std::sync::Arc;

struct Linear {
    isa: Isa,
    weight: StoredTensor,
    format: &'static StoredFormat,
    bias: Option<Vec<f32>>,
    from: ValueId,
    out: ValueId,
    products: Arc<Products>,
    threads: usize,
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
        products: node.products,
        threads: node.threads,
        weight,
    }))
}

impl Kernel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn prepare(&mut self, tokens: usize, _: usize) -> Result<u64, EngineError> {
        Ok(self.products.reserve(self.isa, self.format, self.weight.row_len(), tokens, self.threads))
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let (n, k) = (self.weight.rows(), self.weight.row_len());
        let t = cx.values.rows(self.out);
        let mut out = cx.values.take(self.out);
        let weight = Matrix::new(self.format, n, k, self.weight.bytes()).expect("lowering checked sizes and format");
        let product = Product { weight, bias: self.bias.as_deref(), out: &mut out[..t * n] };
        let done = self.products.run(self.isa, cx.pool, cx.values, self.from, &mut [product]);
        cx.values.put(self.out, out);
        done.map_err(|e| EngineError::Kernel { op: "linear".into(), message: e.to_string() })
    }
}
