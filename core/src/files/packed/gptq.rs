//! GPTQ: integers packed along inputs, scales and zero points of groups of inputs for each output:
//! value = (code − zero) · scale. Version 1 stores zeros less one; `g_idx` names each input's group.

use super::{Packed, Tensors, WeightFormat, floats, matrix, method, of_bytes, shaped};
use crate::files::StoredTensor;
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "gptq",
    about: "2, 3, 4 or 8 bits packed along inputs (`qweight`, `qzeros`, `scales`, `g_idx`), zeros less one (v1) or as they are (v2)",
    written_by: "quant_method gptq",
    detect: |settings| method(settings) == Some("gptq") && !is_awq(settings),
    gather,
};

/// Whether the settings are of AWQ's layout whatever the method is called.
fn is_awq(settings: &Config) -> bool {
    ["checkpoint_format", "format"].iter().any(|key| settings.get(key).and_then(|v| v.as_str()) == Some("gemm"))
}

#[derive(Debug)]
struct Gptq {
    /// Codes, zeros, scales, groups of inputs.
    parts: Vec<StoredTensor>,
    groups: Vec<usize>,
    bits: usize,
    /// Added to stored zeros.
    zero_offset: f32,
}

fn gather(settings: &Config, tensors: &mut Tensors) -> Result<(), String> {
    let text = |key: &str| settings.get(key).and_then(|value| value.as_str());
    let version = text("checkpoint_format").or(text("format")).unwrap_or("gptq").to_string();
    let is_second = match version.as_str() {
        "gptq" => false,
        "gptq_v2" => true,
        other => return Err(format!("the layout `{other}` is not read; read are gptq and gptq_v2")),
    };
    let stated = settings.opt_usize("bits").ok().flatten();
    let group_size = settings.opt_i64("group_size").ok().flatten().unwrap_or(-1);
    let symmetric = settings.get("sym").and_then(|value| value.as_bool()).unwrap_or(false);
    for module in tensors.ending(".qweight") {
        let (codes, zeros) = (tensors.take(&module, ".qweight")?, tensors.take(&module, ".qzeros")?);
        let (scales, columns) = (tensors.take(&module, ".scales")?, tensors.take_if(&module, ".g_idx"));
        of_bytes(&codes, 4)?;
        of_bytes(&zeros, 4)?;
        let (words, outputs) = matrix(&codes)?;
        let (group_count, scale_outputs) = matrix(&scales)?;
        // Single modules may have another number of bits than the rest.
        let bits = match (columns.as_ref().map(StoredTensor::elems).filter(|inputs| *inputs > 0), stated) {
            (Some(inputs), _) => words * 32 / inputs,
            (None, Some(bits)) => bits,
            (None, None) => return Err("the settings have no `bits`".into()),
        };
        if !(1..=8).contains(&bits) || scale_outputs != outputs || group_count == 0 {
            return Err(format!("`{module}` has {bits} bits and scales of shape {:?}", scales.shape()));
        }
        let inputs = words * 32 / bits;
        shaped(&zeros, &[group_count, (outputs * bits).div_ceil(32)])?;
        let groups = match &columns {
            Some(columns) => indices(columns, inputs, group_count)?,
            None => {
                let size = usize::try_from(group_size).ok().filter(|size| *size > 0).unwrap_or(inputs.max(1));
                (0..inputs).map(|input| (input / size).min(group_count.saturating_sub(1))).collect()
            }
        };
        // Files that call themselves the first version and are the second show it by the zero of symmetric codes.
        let middle = 1u32 << (bits - 1);
        let shows_second = symmetric && zeros.elems() > 0 && super::bits::field(zeros.bytes(), 0, bits) == middle;
        let zero_offset = if is_second || shows_second { 0.0 } else { 1.0 };
        let parts = [codes, zeros, scales].into_iter().chain(columns).collect();
        let weight = Gptq { parts, groups, bits, zero_offset };
        tensors.put(format!("{module}.weight"), FORMAT.name, &[outputs, inputs], Arc::new(weight));
    }
    Ok(())
}

/// The group of each of `count` columns.
pub(super) fn indices(tensor: &StoredTensor, count: usize, groups: usize) -> Result<Vec<usize>, String> {
    let name = tensor.name();
    if tensor.elems() != count || tensor.dtype().block_bytes() != 4 {
        return Err(format!("`{name}` has {} values for {count} columns", tensor.elems()));
    }
    let values = tensor.bytes().as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let known = |index: i32| usize::try_from(index).ok().filter(|index| *index < groups);
    values.map(|i| known(i).ok_or_else(|| format!("`{name}` names group {i} of {groups}"))).collect()
}

impl Packed for Gptq {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].row_len()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let (codes, zeros, scales) = (&self.parts[0], &self.parts[1], &self.parts[2]);
        let (outputs, inputs) = (codes.row_len(), self.groups.len());
        let (first, count) = (rows.start, rows.len());
        // Scales and zeros of the wanted outputs, group by group.
        let of_groups: Vec<(Vec<f32>, Vec<f32>)> = (0..scales.rows())
            .map(|group| {
                let bytes = 4 * zeros.row_len();
                let words = &zeros.bytes()[group * bytes..(group + 1) * bytes];
                let zero = |output| super::bits::field(words, output, self.bits) as f32 + self.zero_offset;
                (floats(scales, group * outputs + first, count), rows.clone().map(zero).collect())
            })
            .collect();
        let word = |row: usize, output: usize| {
            let bytes = codes.bytes().get(4 * (row * outputs + output)..).and_then(|bytes| bytes.first_chunk());
            u64::from(u32::from_le_bytes(bytes.copied().unwrap_or_default()))
        };
        let mask = (1u64 << self.bits) - 1;
        for (input, group) in self.groups.iter().enumerate() {
            let (row, shift) = (input * self.bits / 32, input * self.bits % 32);
            let crosses = shift + self.bits > 32;
            let (scales, zeros) = &of_groups[*group];
            for i in 0..count {
                let high = if crosses { word(row + 1, first + i) << 32 } else { 0 };
                let code = (high | word(row, first + i)) >> shift & mask;
                out[i * inputs + input] = (code as f32 - zeros[i]) * scales[i];
            }
        }
    }
}
