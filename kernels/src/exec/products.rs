//! Working memory of matrix products, shared by all of an executor's: the forms of the activation they multiply with and
//! a scratch piece for each worker.
//!
//! A form is made once for all products that read the same value (q, k and v; gate and up), and its buffer serves them
//! all in turn, so the memory is that of the widest product, not of their sum.

use super::step::Values;
use crate::cpu::linear::{ActBuf, ActKind, Product, StoredFormat, multiply};
use crate::cpu::shared::Scratch;
use crate::cpu::{Isa, Pool, PoolError};
use crit_core::model::program::ValueId;
use std::sync::{Mutex, PoisonError};

/// The working memory. Cloned handles are not needed: it is held in an `Arc` by whoever multiplies.
#[derive(Default)]
pub struct Products(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    forms: Vec<Form>,
    scratch: Option<Scratch>,
}

/// The last activation in one kind of form.
struct Form {
    kind: ActKind,
    buf: ActBuf,
    /// Which writing of which value it is of.
    stamp: Option<u64>,
}

impl Products {
    /// Makes room for steps of `tokens` tokens through weights of `format` with rows of `k`; returns the bytes by which
    /// the memory grew. Scratch of workers is made for `workers`, and grows if more come.
    pub fn reserve(&self, isa: Isa, format: &StoredFormat, k: usize, tokens: usize, workers: usize) -> u64 {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = memory.bytes();
        memory.form((format.act)(isa)).buf.reserve((format.act)(isa), tokens * k);
        memory.scratch(workers, format.scratch_bytes(k, isa));
        memory.bytes() - before
    }

    /// Multiplies the value `from` with the weights of `products`, which are all of one format.
    ///
    /// # Errors
    /// A worker panicked.
    ///
    /// # Panics
    /// Sizes do not match.
    pub fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        values: &Values,
        from: ValueId,
        products: &mut [Product<'_>],
    ) -> Result<(), PoolError> {
        let Some(weight) = products.first().map(|product| product.weight) else { return Ok(()) };
        let (kind, k) = ((weight.format().act)(isa), weight.row_len());
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = &mut *memory;
        memory.scratch(pool.threads(), weight.format().scratch_bytes(k, isa));
        let x = values.get(from);
        let form = memory.form(kind);
        let stamp = values.stamp(from);
        if form.stamp != Some(stamp) {
            form.stamp = None;
            form.buf.fill(kind, x, k, isa, pool)?;
            form.stamp = Some(stamp);
        }
        let Memory { forms, scratch } = memory;
        let form = forms.iter().find(|form| form.kind == kind).expect("made above");
        let scratch = scratch.as_mut().expect("made above");
        multiply(isa, pool, scratch, form.buf.view(kind, x, k), products)
    }
}

impl Memory {
    fn bytes(&self) -> u64 {
        let forms: usize = self.forms.iter().map(|form| form.buf.bytes()).sum();
        (forms + self.scratch.as_ref().map_or(0, Scratch::bytes)) as u64
    }

    fn form(&mut self, kind: ActKind) -> &mut Form {
        let at = self.forms.iter().position(|form| form.kind == kind).unwrap_or_else(|| {
            self.forms.push(Form { kind, buf: ActBuf::default(), stamp: None });
            self.forms.len() - 1
        });
        &mut self.forms[at]
    }

    fn scratch(&mut self, workers: usize, bytes: usize) {
        let (have, each) = self.scratch.as_ref().map_or((0, 0), |s| (s.workers(), s.bytes_per_worker()));
        if self.scratch.is_none() || have < workers || each < bytes {
            self.scratch = Some(Scratch::new(have.max(workers), each.max(bytes)));
        }
    }
}
