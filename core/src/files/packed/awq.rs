//! AWQ: four bits packed along outputs, eight to a word in an order of their own; scales and zero points of groups of
//! inputs: value = (code − zero) · scale.

use super::{Packed, Tensors, WeightFormat, floats, matrix, method, of_bytes, shaped};
use crate::files::StoredTensor;
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "awq",
    about: "4 bits packed along outputs in the order 0 2 4 6 1 3 5 7 (`qweight`, `qzeros`, `scales`)",
    written_by: "quant_method awq (gemm)",
    detect: |settings| method(settings) == Some("awq"),
    gather,
};

/// The nibble of a word that holds each of eight outputs.
const NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

#[derive(Debug)]
struct Awq([StoredTensor; 3]);

fn gather(settings: &Config, tensors: &mut Tensors) -> Result<(), String> {
    let text = |key: &str| settings.get(key).and_then(|value| value.as_str()).map(str::to_lowercase);
    let version = text("version").or(text("format")).unwrap_or_else(|| "gemm".into());
    let bits = settings.opt_usize("bits").ok().flatten().or(settings.opt_usize("w_bit").ok().flatten());
    if version != "gemm" || bits.is_some_and(|bits| bits != 4) {
        return Err(format!("the layout `{version}` with {} bits is not read; read is gemm with 4", bits.unwrap_or(4)));
    }
    for module in tensors.ending(".qweight") {
        let mut take = |end| tensors.take(&module, end);
        let parts = [take(".qweight")?, take(".qzeros")?, take(".scales")?];
        let (inputs, words) = matrix(&parts[0])?;
        let groups = parts[2].rows();
        of_bytes(&parts[0], 4)?;
        of_bytes(&parts[1], 4)?;
        shaped(&parts[1], &[groups, words])?;
        shaped(&parts[2], &[groups, 8 * words])?;
        if groups == 0 || !inputs.is_multiple_of(groups) {
            return Err(format!("`{module}` has {groups} groups of {inputs} inputs"));
        }
        tensors.put(format!("{module}.weight"), FORMAT.name, &[8 * words, inputs], Arc::new(Awq(parts)));
    }
    Ok(())
}

/// The code of `output` in row `row` of packed words.
fn code(tensor: &StoredTensor, row: usize, output: usize) -> f32 {
    let at = 4 * (row * tensor.row_len() + output / 8);
    let nibble = NIBBLE[output % 8];
    let byte = tensor.bytes()[at + nibble / 2];
    f32::from(byte >> (4 * (nibble % 2)) & 15)
}

impl Packed for Awq {
    fn parts(&self) -> &[StoredTensor] {
        &self.0
    }

    fn rows(&self) -> usize {
        self.0[2].row_len()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let [codes, zeros, scales] = &self.0;
        let (inputs, outputs, groups) = (codes.rows(), scales.row_len(), scales.rows());
        let size = inputs / groups;
        for group in 0..groups {
            let scales = floats(scales, group * outputs + rows.start, rows.len());
            let zeros: Vec<f32> = rows.clone().map(|output| code(zeros, group, output)).collect();
            for input in group * size..(group + 1) * size {
                for (i, output) in rows.clone().enumerate() {
                    out[i * inputs + input] = (code(codes, input, output) - zeros[i]) * scales[i];
                }
            }
        }
    }
}
