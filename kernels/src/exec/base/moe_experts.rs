//! `moe_experts` on weights as stored, like `linear`. Weights in a format without a kernel are multiplied exactly.

use crate::cpu::linear::{ActBuf, Matrix, Product, StoredFormat, format, multiply};
use crate::cpu::shared::Scratch;
use crate::cpu::{Isa, Pool, PoolError};
use crate::exec::common::moe_experts::{Exactly, Multiply, lower_with};
use crate::exec::step::{Kernel, Lowering};
use crit_core::files::StoredTensor;
use crit_core::runtime::EngineError;

struct AsStored {
    isa: Isa,
    form: ActBuf,
    scratch: Option<Scratch>,
    exactly: Exactly,
}

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let isa = node.isa;
    lower_with(node, AsStored { isa, form: ActBuf::default(), scratch: None, exactly: Exactly(isa) })
}

/// The kernel's format of a weight, if there is one that fits its rows.
fn known(weight: &StoredTensor) -> Option<&'static StoredFormat> {
    format(weight.dtype().name()).filter(|f| weight.row_len().is_multiple_of(f.block_elems))
}

impl Multiply for AsStored {
    fn reserve(&mut self, weights: &[StoredTensor], rows: usize) -> u64 {
        for weight in weights.iter().filter(|weight| weight.shape().len() > 1) {
            if let Some(format) = known(weight) {
                self.form.reserve((format.act)(self.isa), rows * weight.row_len());
            }
        }
        self.form.bytes() as u64
    }

    fn run(
        &mut self,
        pool: &Pool,
        x: &[f32],
        weights: &[&StoredTensor],
        out: &mut [&mut [f32]],
    ) -> Result<(), PoolError> {
        let Some(format) =
            known(weights[0]).filter(|f| weights.iter().all(|w| known(w).is_some_and(|g| g.name == f.name)))
        else {
            return self.exactly.run(pool, x, weights, out);
        };
        let (kind, k) = ((format.act)(self.isa), weights[0].row_len());
        let needed = format.scratch_bytes(k, self.isa);
        if self.scratch.as_ref().is_none_or(|s| s.workers() < pool.threads() || s.bytes_per_worker() < needed) {
            self.scratch = Some(Scratch::new(pool.threads(), needed));
        }
        let scratch = self.scratch.as_mut().expect("made above");
        self.form.fill(kind, x, k, self.isa, pool)?;
        let matrix = |w: &'_ StoredTensor| (w.rows(), w.row_len());
        let mut products: Vec<Product<'_>> = Vec::with_capacity(weights.len());
        for (weight, out) in weights.iter().zip(out) {
            let (n, k) = matrix(weight);
            let weight = Matrix::new(format, n, k, weight.bytes()).expect("a tensor's bytes are those of its shape");
            products.push(Product { weight, bias: None, out });
        }
        multiply(self.isa, pool, scratch, self.form.view(kind, x, k), &mut products)
    }
}
