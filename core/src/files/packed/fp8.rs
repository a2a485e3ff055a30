//! Floats of eight bits with a scale for the whole tensor, for each row, or for each block: value = code · scale, also
//! where the scale is called an inverse. Blocks at the edges are smaller.

use super::{Packed, Tensors, WeightFormat, floats, is_compressed_tensors, is_modelopt, method};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "fp8",
    about: "E4M3 or E5M2 with scales of a tensor, of rows, or of blocks (`weight_scale_inv`, `weight_scale`); value = code · scale",
    written_by: "quant_method fp8, fbgemm_fp8, modelopt (FP8), compressed-tensors (float-quantized)",
    detect: |settings| {
        matches!(method(settings), Some("fp8" | "fbgemm_fp8"))
            || is_modelopt(settings)
            || is_compressed_tensors(settings)
    },
    gather,
};

/// Names of the scales.
const SCALES: &[&str] = &[".weight_scale_inv", ".weight_scale", ".scale"];

#[derive(Debug)]
struct Fp8 {
    /// Codes, scales.
    parts: [StoredTensor; 2],
    /// Rows of a matrix, of which there may be a stack.
    rows: usize,
    /// Rows and columns of a block.
    block: (usize, usize),
    /// Blocks of a matrix down and across.
    blocks: (usize, usize),
}

fn gather(settings: &Config, tensors: &mut Tensors) -> Result<(), String> {
    let block = block_size(settings);
    for module in tensors.ending(".weight") {
        let is_code = |tensor: &StoredTensor| matches!(tensor.dtype(), DType::F8_E4M3 | DType::F8_E5M2);
        let Some(end) = SCALES.iter().find(|end| tensors.get(&module, end).is_some_and(|s| s.dtype() != DType::U8))
        else {
            continue;
        };
        if !tensors.get(&module, ".weight").is_some_and(is_code) {
            continue;
        }
        let parts = [tensors.take(&module, ".weight")?, tensors.take(&module, end)?];
        let shape = parts[0].shape().to_vec();
        let weight = Fp8::new(parts, block)?;
        tensors.put(format!("{module}.weight"), FORMAT.name, &shape, Arc::new(weight));
    }
    Ok(())
}

/// Rows and columns of a block as the settings have them.
fn block_size(settings: &Config) -> Option<(usize, usize)> {
    let stated = settings.opt_usize_list("weight_block_size").ok().flatten();
    let groups = settings.get("config_groups").and_then(serde_json::Value::as_object);
    let of_group = groups.and_then(|groups| {
        groups.values().find_map(|group| {
            let pair = group["weights"]["block_structure"].as_array()?;
            pair.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect::<Option<Vec<usize>>>()
        })
    });
    match stated.or(of_group)?[..] {
        [rows, columns] if rows > 0 && columns > 0 => Some((rows, columns)),
        _ => None,
    }
}

impl Fp8 {
    fn new(parts: [StoredTensor; 2], block: Option<(usize, usize)>) -> Result<Self, String> {
        let [codes, scales] = &parts;
        let [.., rows, columns] = codes.shape()[..] else {
            return Err(format!("`{}` is no matrix", codes.name()));
        };
        let stack: usize = codes.shape()[..codes.shape().len() - 2].iter().product();
        let count = scales.elems();
        let of_block = block.map(|(r, c)| ((r, c), (rows.div_ceil(r), columns.div_ceil(c))));
        let choices = [
            Some(((rows.max(1), columns.max(1)), (1, 1))).filter(|_| count == stack),
            of_block.filter(|(_, (down, across))| count == stack * down * across),
            Some(((1, columns.max(1)), (rows, 1))).filter(|_| count == stack * rows),
        ];
        let (block, blocks) = choices.into_iter().flatten().next().ok_or_else(|| {
            let (name, shape) = (scales.name(), scales.shape());
            format!("`{name}` has shape {shape:?}, which is neither one scale, nor one a row, nor one a block of the settings")
        })?;
        Ok(Self { rows, block, blocks, parts })
    }
}

impl Packed for Fp8 {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [codes, scales] = &self.parts;
        let width = codes.row_len();
        let (_, across) = self.blocks;
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            codes.dtype().dequant(&codes.bytes()[row * width..(row + 1) * width], out);
            let down = row / self.rows * self.blocks.0 + row % self.rows / self.block.0;
            let scales = floats(scales, down * across, across);
            for (out, scale) in out.chunks_mut(self.block.1).zip(scales) {
                out.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }
}
