//! Bytes with a scale for the tensor or for each row: value = code · scale.

use super::{Packed, Tensors, WeightFormat, floats, is_compressed_tensors, matrix};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "int8",
    about: "signed bytes with scales of a tensor or of rows (`weight_scale`); value = code · scale",
    written_by: "compressed-tensors (int-quantized)",
    detect: is_compressed_tensors,
    gather,
};

#[derive(Debug)]
struct Int8([StoredTensor; 2]);

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for module in tensors.ending(".weight_scale") {
        if tensors.get(&module, ".weight").is_none_or(|codes| codes.dtype() != DType::I8) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight")?, tensors.take(&module, ".weight_scale")?];
        let (rows, width) = matrix(&parts[0])?;
        if ![1, rows].contains(&parts[1].elems()) {
            return Err(format!("`{module}.weight_scale` has shape {:?} for {rows} rows", parts[1].shape()));
        }
        if tensors.get(&module, ".weight_zero_point").is_some() {
            return Err(format!("`{module}` has zero points, which are not read in this format"));
        }
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, width], Arc::new(Int8(parts)));
    }
    Ok(())
}

impl Packed for Int8 {
    fn parts(&self) -> &[StoredTensor] {
        &self.0
    }

    fn rows(&self) -> usize {
        self.0[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [codes, scales] = &self.0;
        let width = codes.row_len();
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            codes.dtype().dequant(&codes.bytes()[row * width..(row + 1) * width], out);
            let scale = floats(scales, row.min(scales.elems() - 1), 1)[0];
            out.iter_mut().for_each(|value| *value *= scale);
        }
    }
}
