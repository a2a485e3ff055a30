//! 8-bit weights: claims matrix products with float weights, packs the weights to Q8_0 blocks once, and multiplies with
//! the base kernel of that format.
//!
//! A block is 32 codes and an f16 scale, 34 bytes. Rows that are not whole blocks, and weights that are not floats, are
//! left to the base kernels.

mod pack;
#[cfg(test)]
mod tests;

use crit_core::files::StoredTensor;
use crit_core::model::program::{Axis, Precision, ValueId};
use crit_core::plugin::Options;
use crit_core::runtime::EngineError;
use crit_kernels::cpu::linear::{ActBuf, Matrix, Product, StoredFormat, format, multiply};
use crit_kernels::cpu::shared::Scratch;
use crit_kernels::cpu::{Isa, PoolError};
use crit_kernels::exec::{Kernel, Lowering, OpPlugin, StepCx};
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;

const NAME: &str = "weights_q8";

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "pack.rs", "plugin.json", "tests.rs"), make };

fn make(options: &Options) -> Result<Instance, PluginError> {
    let unsupported = || PluginError::Unsupported { plugin: NAME.into(), why: "the backend has no Q8_0 kernel".into() };
    let stored = format("Q8_0").ok_or_else(unsupported)?;
    Ok(Instance::Op(Box::new(WeightsQ8 { stored, head: options.flag("head") })))
}

struct WeightsQ8 {
    stored: &'static StoredFormat,
    head: bool,
}

impl OpPlugin for WeightsQ8 {
    fn lower(&self, node: &Lowering<'_>) -> Result<Option<Box<dyn Kernel>>, EngineError> {
        let parts = node.view.node;
        if parts.op.name() != "linear" {
            return Ok(None);
        }
        let weight = &node.weights[0];
        let is_head = node.view.program.values[parts.writes[0].at()].axis == Axis::Rows;
        let whole = weight.row_len().is_multiple_of(self.stored.block_elems);
        if !whole || !weight.dtype().is_float() || (is_head && !self.head) {
            return Ok(None);
        }
        let kernel_error = |message: String| EngineError::Kernel { op: NAME.into(), message };
        let pack = pack::pack(weight).map_err(|error| kernel_error(error.to_string()))?;
        Ok(Some(Box::new(Packed {
            isa: node.isa,
            stored: self.stored,
            tensor: weight.name().into(),
            rows: weight.rows(),
            row_len: weight.row_len(),
            pack,
            bias: node.weights.get(1).map(StoredTensor::to_f32),
            from: parts.reads[0],
            out: parts.writes[0],
            act: ActBuf::default(),
            scratch: None,
        })))
    }

    fn precision(&self) -> Option<(Precision, Precision)> {
        Some((Precision::Int8, Precision::Int8))
    }
}

/// A product with a packed weight.
struct Packed {
    isa: Isa,
    stored: &'static StoredFormat,
    tensor: String,
    rows: usize,
    row_len: usize,
    pack: Vec<u8>,
    bias: Option<Vec<f32>>,
    from: ValueId,
    out: ValueId,
    act: ActBuf,
    /// Made in the first step, when the number of threads is known.
    scratch: Option<Scratch>,
}

impl Packed {
    fn multiply(&mut self, cx: &mut StepCx<'_>, out: &mut [f32]) -> Result<(), PoolError> {
        let x = cx.values.get(self.from);
        let bytes = self.stored.scratch_bytes(self.row_len, self.isa);
        let scratch = self.scratch.get_or_insert_with(|| Scratch::new(cx.pool.threads(), bytes));
        let weight = Matrix::new(self.stored, self.rows, self.row_len, &self.pack).expect("packed to these sizes");
        let act = self.act.fill((self.stored.act)(self.isa), x, self.row_len, self.isa, cx.pool)?;
        multiply(self.isa, cx.pool, scratch, act, &mut [Product { weight, bias: self.bias.as_deref(), out }])
    }
}

impl Kernel for Packed {
    fn name(&self) -> &str {
        NAME
    }

    fn packs_bytes(&self) -> u64 {
        self.pack.len() as u64
    }

    fn stored_bytes(&self) -> Vec<(String, u64)> {
        vec![(self.tensor.clone(), self.pack.len() as u64)]
    }

    fn prepare(&mut self, tokens: usize, _: usize) -> Result<u64, EngineError> {
        self.act = ActBuf::with_capacity(tokens * self.row_len, &[(self.stored.act)(self.isa)]);
        Ok(self.act.bytes() as u64)
    }

    fn enqueue(&mut self, cx: &mut StepCx<'_>) -> Result<(), EngineError> {
        let len = cx.values.len(self.out);
        let mut out = cx.values.take(self.out);
        let done = self.multiply(cx, &mut out[..len]);
        cx.values.put(self.out, out);
        done.map_err(|error| EngineError::Kernel { op: NAME.into(), message: error.to_string() })
    }
}
