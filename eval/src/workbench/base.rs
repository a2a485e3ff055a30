//! The base engine's own product as a yardstick, in this process.

use super::Kernel;
use crate::clock::Clock;
use crate::error::EvalError;
use crit_kernels::cpu::isa::Isa;
use crit_kernels::cpu::linear::{ActBuf, Matrix, Product, StoredFormat, format, multiply};
use crit_kernels::cpu::pool::{Pool, PoolError};
use crit_kernels::cpu::shared::Scratch;

/// crit's f32 product.
pub struct BaseLinear {
    isa: Isa,
    pool: Pool,
    format: &'static StoredFormat,
    /// The weight's bytes, and which weight they are.
    bytes: Vec<u8>,
    of: Option<u64>,
    act: ActBuf,
    scratch: Scratch,
}

impl BaseLinear {
    /// On `threads` threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize) -> Result<Self, EvalError> {
        let trouble = |what: String| EvalError::Machine { what, hint: "close what else runs and try again".into() };
        let pool = Pool::new(threads).map_err(|error| trouble(error.to_string()))?;
        let format = format("F32").ok_or_else(|| trouble("crit has no f32 product".into()))?;
        let scratch = Scratch::new(pool.threads(), 0);
        Ok(Self { isa: Isa::detect(), pool, format, bytes: Vec::new(), of: None, act: ActBuf::default(), scratch })
    }
}

impl BaseLinear {
    fn product(&mut self, shape: &[usize], x: &[f32], output: &mut [f32]) -> Result<(), EvalError> {
        let (n, k) = (shape[1], shape[2]);
        let weight = Matrix::new(self.format, n, k, &self.bytes).ok_or_else(|| EvalError::Request {
            what: format!("no weight of {n} x {k}"),
            hint: "another shape".into(),
        })?;
        let wanted = self.format.scratch_bytes(k, self.isa);
        if self.scratch.bytes_per_worker() < wanted {
            self.scratch = Scratch::new(self.pool.threads(), wanted);
        }
        let kind = (self.format.act)(self.isa);
        let act = self.act.fill(kind, x, k, self.isa, &self.pool).map_err(failed)?;
        let mut products = [Product { weight, bias: None, out: output }];
        multiply(self.isa, &self.pool, &mut self.scratch, act, &mut products).map_err(failed)
    }
}

fn failed(error: PoolError) -> EvalError {
    EvalError::Machine { what: format!("crit's own product failed: {error}"), hint: "report it".into() }
}

impl Kernel for BaseLinear {
    fn name(&self) -> &str {
        "crit base"
    }

    fn run(&mut self, shape: &[usize], inputs: &[Vec<f32>], output: &mut [f32]) -> Result<(), EvalError> {
        self.prepare(shape, inputs, output.len())?;
        self.product(shape, &inputs[0], output)
    }

    fn timed(
        &mut self,
        shape: &[usize],
        inputs: &[Vec<f32>],
        output: &mut [f32],
        clock: &dyn Clock,
    ) -> Result<f64, EvalError> {
        let start = clock.now_s();
        self.product(shape, &inputs[0], output)?;
        Ok(clock.now_s() - start)
    }

    fn prepare(&mut self, _: &[usize], inputs: &[Vec<f32>], _: usize) -> Result<(), EvalError> {
        let of = super::check::bits(&inputs[1]);
        if self.of != Some(of) {
            self.bytes = inputs[1].iter().flat_map(|x| x.to_le_bytes()).collect();
            self.of = Some(of);
        }
        Ok(())
    }
}
