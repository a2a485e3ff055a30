//! A GGUF weight of blocks with a factor of its own beside it, as NVFP4 has: one, or one for each expert of a stack. The
//! reader of GGUF files calls [`gather_gguf`]; nothing in a configuration tells of it.

use super::{Packed, WeightFormat, floats};
use crate::files::StoredTensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "scaled",
    about: "blocks of a GGUF type (`.weight`) under a factor for the whole matrix (`.scale`)",
    written_by: "llama.cpp's converter (NVFP4)",
    detect: |_| false,
    gather: |_, _| Ok(()),
};

/// Factors of activations, which are kept in plain numbers here.
const UNUSED: &str = ".input_scale";

#[derive(Debug)]
struct Scaled {
    /// Blocks, factors.
    parts: [StoredTensor; 2],
    /// Rows that share a factor.
    share: usize,
}

/// Puts weights in the place of blocks and their factors, under the blocks' names.
pub(in crate::files) fn gather_gguf(tensors: Vec<StoredTensor>) -> Result<Vec<StoredTensor>, String> {
    let is_factor = |tensor: &&StoredTensor| tensor.name().ends_with(".scale");
    if !tensors.iter().any(|tensor| is_factor(&tensor)) {
        return Ok(tensors);
    }
    let mut by_name: BTreeMap<String, StoredTensor> =
        tensors.into_iter().map(|tensor| (tensor.name().to_string(), tensor)).collect();
    by_name.retain(|name, _| !name.ends_with(UNUSED));
    let stems: Vec<String> = by_name.keys().filter_map(|name| name.strip_suffix(".scale")).map(String::from).collect();
    for stem in stems {
        let (weight, scale) = (format!("{stem}.weight"), format!("{stem}.scale"));
        let Some(blocks) = by_name.get(&weight).cloned() else { continue };
        let Some(factors) = by_name.remove(&scale) else { continue };
        let (rows, count) = (blocks.rows(), factors.elems());
        if count == 0 || !rows.is_multiple_of(count) || !factors.dtype().is_float() {
            return Err(format!("`{scale}` has {count} factors for the {rows} rows of `{weight}`"));
        }
        let shape = blocks.shape().to_vec();
        let made = Scaled { parts: [blocks, factors], share: rows / count };
        by_name.insert(weight.clone(), StoredTensor::packed(&weight, FORMAT.name, &shape, Arc::new(made)));
    }
    Ok(by_name.into_values().collect())
}

impl Packed for Scaled {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [blocks, factors] = &self.parts;
        let factors = floats(factors, 0, factors.elems());
        for (row, out) in rows.zip(out.chunks_exact_mut(blocks.row_len().max(1))) {
            let bytes = &blocks.bytes()[row * blocks.row_size()..(row + 1) * blocks.row_size()];
            blocks.dtype().dequant(bytes, out);
            out.iter_mut().for_each(|value| *value *= factors[row / self.share]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::DType;

    #[test]
    fn factors_of_experts_multiply() {
        let blocks: Vec<u8> = [2.0f32, 3.0, 4.0, 5.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let blocks = StoredTensor::from_bytes("w.weight", DType::F32, &[2, 1, 2], blocks).unwrap();
        let factors = StoredTensor::from_f32("w.scale", &[2], &[10.0, 100.0]).unwrap();
        let input = StoredTensor::from_f32("w.input_scale", &[1], &[7.0]).unwrap();
        let made = gather_gguf(vec![factors.clone(), blocks.clone(), input]).unwrap();
        assert_eq!((made.len(), made[0].to_f32()), (1, vec![20.0, 30.0, 400.0, 500.0]));
        let three = StoredTensor::from_f32("w.scale", &[3], &[1.0; 3]).unwrap();
        assert!(gather_gguf(vec![three, blocks]).is_err());
    }
}
