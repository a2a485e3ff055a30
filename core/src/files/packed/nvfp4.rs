//! NVFP4: E2M1 codes in groups of 16 with E4M3 scales, under one float for the tensor: ModelOpt's multiplies, that of
//! compressed-tensors divides.

use super::bits::e2m1_at;
use super::{Packed, Tensors, WeightFormat, floats, is_compressed_tensors, is_modelopt, matrix, scalar, shaped};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "nvfp4",
    about: "E2M1, groups of 16 with E4M3 scales under a float for the tensor (`weight_scale_2` multiplies, `weight_global_scale` divides)",
    written_by: "quant_method modelopt (NVFP4), compressed-tensors (nvfp4-pack-quantized)",
    detect: |settings| is_modelopt(settings) || is_compressed_tensors(settings),
    gather,
};

/// Elements of a group.
const GROUP: usize = 16;

#[derive(Debug)]
struct Nvfp4 {
    /// Codes, scales, the tensor's own.
    parts: [StoredTensor; 3],
    global: Global,
}

#[derive(Clone, Copy, Debug)]
enum Global {
    Multiplies(f32),
    Divides(f32),
}

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    type Means = fn(f32) -> Global;
    for (global_end, codes_end, global) in [
        (".weight_scale_2", ".weight", Global::Multiplies as Means),
        (".weight_global_scale", ".weight_packed", Global::Divides as Means),
    ] {
        for module in tensors.ending(global_end) {
            if tensors.get(&module, codes_end).is_none_or(|codes| codes.dtype() != DType::U8) {
                continue;
            }
            let mut take = |end| tensors.take(&module, end);
            let parts = [take(codes_end)?, take(".weight_scale")?, take(global_end)?];
            let (rows, bytes) = matrix(&parts[0])?;
            shaped(&parts[1], &[rows, (2 * bytes).div_ceil(GROUP)])?;
            let global = global(scalar(&parts[2])?);
            tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, 2 * bytes], Arc::new(Nvfp4 { parts, global }));
        }
    }
    Ok(())
}

impl Packed for Nvfp4 {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [codes, scales, _] = &self.parts;
        let (bytes, groups) = (codes.row_len(), scales.row_len());
        for (row, out) in rows.zip(out.chunks_exact_mut((2 * bytes).max(1))) {
            let codes = &codes.bytes()[row * bytes..(row + 1) * bytes];
            let scales = floats(scales, row * groups, groups);
            for (i, value) in out.iter_mut().enumerate() {
                *value = match self.global {
                    // ModelOpt's own reader knows one zero: adding 0 makes -0 it.
                    Global::Multiplies(global) => e2m1_at(codes, i) * (scales[i / GROUP] * global) + 0.0,
                    Global::Divides(global) => e2m1_at(codes, i) * (scales[i / GROUP] / global),
                };
            }
        }
    }
}
