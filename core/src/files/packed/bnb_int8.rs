//! bitsandbytes with eight bits: signed bytes and the largest magnitude of each row: value = code · largest / 127.

use super::{Packed, Tensors, WeightFormat, floats, matrix, method};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "bnb_int8",
    about: "signed bytes with the largest of each row (`SCB`); value = code · largest / 127",
    written_by: "quant_method bitsandbytes (load_in_8bit)",
    detect: |settings| method(settings) == Some("bitsandbytes"),
    gather,
};

/// Multiplied by, as the library does; a division would round otherwise.
const INVERSE_127: f32 = 1.0 / 127.0;

#[derive(Debug)]
struct Int8([StoredTensor; 2]);

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for module in tensors.ending(".SCB") {
        if tensors.get(&module, ".weight").is_none_or(|codes| codes.dtype() != DType::I8) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight")?, tensors.take(&module, ".SCB")?];
        let layout = tensors.take_if(&module, ".weight_format");
        if layout.is_some_and(|layout| layout.bytes().first().is_some_and(|kind| *kind != 0)) {
            return Err(format!("`{module}.weight` lies in tiles of some device; only rows are read"));
        }
        let (rows, width) = matrix(&parts[0])?;
        if parts[1].elems() != rows {
            return Err(format!("`{module}.SCB` has {} values for {rows} rows", parts[1].elems()));
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
        let [codes, largest] = &self.0;
        let width = codes.row_len();
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            codes.dtype().dequant(&codes.bytes()[row * width..(row + 1) * width], out);
            let largest = floats(largest, row, 1)[0];
            out.iter_mut().for_each(|value| *value = *value * largest * INVERSE_127);
        }
    }
}
