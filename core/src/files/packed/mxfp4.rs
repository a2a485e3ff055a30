//! MXFP4: E2M1 codes in groups of 32 with powers of two as scales.
//!
//! gpt-oss files hold stacks of experts as `name_blocks` and `name_scales`, rows being outputs; the model's own tensor is
//! `[experts, in, out]`. DeepSeek's hold an expert's codes as signed bytes, `weight`, beside `scale`.

use super::bits::{e2m1_at, e8m0};
use super::{Packed, Tensors, WeightFormat, is_compressed_tensors, matrix, method, shaped};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "mxfp4",
    about: "E2M1, groups of 32 with E8M0 scales (`_blocks` and `_scales` of stacked experts, `weight_packed` and `weight_scale`, or bytes with `scale`)",
    written_by: "quant_method mxfp4, compressed-tensors (mxfp4-pack-quantized), fp8 (experts of deepseek_v4)",
    detect: |settings| matches!(method(settings), Some("fp8" | "mxfp4")) || is_compressed_tensors(settings),
    gather,
};

/// Elements of a group.
const GROUP: usize = 32;

#[derive(Clone, Debug)]
struct Mxfp4 {
    /// Codes, scales.
    parts: [StoredTensor; 2],
    /// Elements of a stored row.
    width: usize,
    /// Stored rows of a matrix of the stack, if it is read with axes swapped.
    swapped: Option<usize>,
}

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for module in tensors.ending("_blocks") {
        let parts = [tensors.take(&module, "_blocks")?, tensors.take(&module, "_scales")?];
        let [experts, rows, groups, 16] = parts[0].shape()[..] else {
            return Err(format!("`{module}_blocks` has shape {:?}", parts[0].shape()));
        };
        shaped(&parts[1], &[experts, rows, groups])?;
        parts.iter().try_for_each(|part| super::of_bytes(part, 1))?;
        let width = groups * GROUP;
        let weight = Mxfp4 { parts, width, swapped: Some(rows) };
        tensors.put(module, FORMAT.name, &[experts, width, rows], Arc::new(weight));
    }
    for module in tensors.ending(".weight_packed") {
        let is_bytes = |end| tensors.get(&module, end).is_some_and(|tensor| tensor.dtype() == DType::U8);
        if !(is_bytes(".weight_packed") && is_bytes(".weight_scale")) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight_packed")?, tensors.take(&module, ".weight_scale")?];
        let (rows, bytes) = matrix(&parts[0])?;
        shaped(&parts[1], &[rows, (2 * bytes).div_ceil(GROUP)])?;
        let weight = Mxfp4 { parts, width: 2 * bytes, swapped: None };
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, 2 * bytes], Arc::new(weight));
    }
    for module in tensors.ending(".scale") {
        let is = |end, dtype| tensors.get(&module, end).is_some_and(|tensor| tensor.dtype() == dtype);
        if !(is(".weight", DType::I8) && is(".scale", DType::F8_E8M0)) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight")?, tensors.take(&module, ".scale")?];
        let (rows, bytes) = matrix(&parts[0])?;
        shaped(&parts[1], &[rows, (2 * bytes).div_ceil(GROUP)])?;
        let weight = Mxfp4 { parts, width: 2 * bytes, swapped: None };
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, 2 * bytes], Arc::new(weight));
    }
    Ok(())
}

impl Mxfp4 {
    fn value(&self, row: usize, column: usize) -> f32 {
        let [codes, scales] = &self.parts;
        let groups = self.width.div_ceil(GROUP);
        let codes = &codes.bytes()[row * self.width / 2..];
        e2m1_at(codes, column) * e8m0(scales.bytes()[row * groups + column / GROUP])
    }
}

impl Packed for Mxfp4 {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        match self.swapped {
            None => self.parts[0].elems() * 2 / self.width.max(1),
            Some(_) => self.parts[0].shape()[0] * self.width,
        }
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let length = self.swapped.unwrap_or(self.width);
        for (row, out) in rows.zip(out.chunks_exact_mut(length.max(1))) {
            for (i, value) in out.iter_mut().enumerate() {
                *value = match self.swapped {
                    None => self.value(row, i),
                    Some(stored) => self.value(row / self.width * stored + i, row % self.width),
                };
            }
        }
    }

    fn transposed(&self) -> Option<Arc<dyn Packed>> {
        self.swapped.map(|_| Arc::new(Self { swapped: None, ..self.clone() }) as Arc<dyn Packed>)
    }
}
