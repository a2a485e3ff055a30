//! MXFP8: E4M3 codes in groups of 32 with powers of two as scales.

use super::bits::e8m0;
use super::{Packed, Tensors, WeightFormat, is_compressed_tensors, matrix, shaped};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "mxfp8",
    about: "E4M3, groups of 32 with E8M0 scales in bytes (`weight_scale`)",
    written_by: "compressed-tensors (mxfp8-quantized)",
    detect: is_compressed_tensors,
    gather,
};

/// Elements of a group.
const GROUP: usize = 32;

#[derive(Debug)]
struct Mxfp8([StoredTensor; 2]);

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for module in tensors.ending(".weight_scale") {
        let has = |end, dtype| tensors.get(&module, end).is_some_and(|tensor| tensor.dtype() == dtype);
        if !(has(".weight_scale", DType::U8) && has(".weight", DType::F8_E4M3)) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight")?, tensors.take(&module, ".weight_scale")?];
        let (rows, width) = matrix(&parts[0])?;
        shaped(&parts[1], &[rows, width.div_ceil(GROUP)])?;
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, width], Arc::new(Mxfp8(parts)));
    }
    Ok(())
}

impl Packed for Mxfp8 {
    fn parts(&self) -> &[StoredTensor] {
        &self.0
    }

    fn rows(&self) -> usize {
        self.0[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [codes, scales] = &self.0;
        let (width, groups) = (codes.row_len(), scales.row_len());
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            codes.dtype().dequant(&codes.bytes()[row * width..(row + 1) * width], out);
            for (group, out) in out.chunks_mut(GROUP).enumerate() {
                let scale = e8m0(scales.bytes()[row * groups + group]);
                out.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
}
