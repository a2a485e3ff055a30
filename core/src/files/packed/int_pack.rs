//! Integers of a few bits packed along rows into 32-bit words: value = (field − 2^(bits−1) − zero) · scale.
//!
//! Fields lie densely, across words too; older files leave the bits of a word that a field does not fill. The width of the
//! packed rows tells which.

use super::bits::field;
use super::{Packed, Tensors, WeightFormat, floats, is_compressed_tensors, matrix};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "int_pack",
    about: "2 to 8 bits packed along rows (`weight_packed`, `weight_scale`, `weight_zero_point`, `weight_g_idx`)",
    written_by: "compressed-tensors (pack-quantized)",
    detect: is_compressed_tensors,
    gather,
};

#[derive(Debug)]
struct IntPack {
    /// Codes, scales, then zero points and the groups of columns where there are any.
    parts: Vec<StoredTensor>,
    zeros: Option<StoredTensor>,
    /// Group of each column, if they do not follow each other.
    groups: Option<Vec<usize>>,
    width: usize,
    bits: usize,
    /// Fields of a word, if they do not cross words.
    per_word: Option<usize>,
}

fn gather(settings: &Config, tensors: &mut Tensors) -> Result<(), String> {
    let stated = stated_bits(settings);
    for module in tensors.ending(".weight_packed") {
        if tensors.get(&module, ".weight_packed").is_none_or(|codes| codes.dtype() != DType::I32) {
            continue;
        }
        let codes = tensors.take(&module, ".weight_packed")?;
        let scales = tensors.take(&module, ".weight_scale")?;
        let shape = tensors.take(&module, ".weight_shape")?;
        super::shaped(&shape, &[2])?;
        let shape: Vec<usize> = floats(&shape, 0, 2).iter().map(|n| *n as usize).collect();
        let (rows, words) = matrix(&codes)?;
        let width = shape[1];
        if shape[0] != rows || width == 0 || matrix(&scales)?.0 != rows || scales.row_len() == 0 {
            return Err(format!("`{module}` has {rows} packed rows and states the shape {shape:?}"));
        }
        let (bits, per_word) = layout(words, width, &stated)
            .ok_or_else(|| format!("`{module}.weight_packed` has {words} words a row of {width} values"))?;
        let zeros = tensors.take_if(&module, ".weight_zero_point");
        let columns = tensors.take_if(&module, ".weight_g_idx");
        let group_count = scales.row_len();
        if let Some(zeros) = &zeros {
            super::of_bytes(zeros, 4)?;
            super::shaped(zeros, &[(rows * bits).div_ceil(32), group_count])?;
        }
        let groups = columns.as_ref().map(|columns| super::gptq::indices(columns, width, group_count)).transpose()?;
        let parts = [codes, scales].into_iter().chain(zeros.clone()).chain(columns).collect();
        let weight = IntPack { parts, zeros, groups, width, bits, per_word };
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, width], Arc::new(weight));
    }
    Ok(())
}

/// The bit counts that the settings mention.
fn stated_bits(settings: &Config) -> Vec<usize> {
    let groups = settings.get("config_groups").and_then(serde_json::Value::as_object);
    let bits =
        groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| group["weights"]["num_bits"].as_u64());
    bits.filter_map(|bits| usize::try_from(bits).ok()).filter(|bits| (1..=8).contains(bits)).collect()
}

fn layout(words: usize, width: usize, stated: &[usize]) -> Option<(usize, Option<usize>)> {
    stated.iter().find_map(|bits| {
        let per_word = 32 / bits;
        match words {
            _ if Some(words) == width.checked_mul(*bits).map(|bits| bits.div_ceil(32)) => Some((*bits, None)),
            _ if words == width.div_ceil(per_word) => Some((*bits, Some(per_word))),
            _ => None,
        }
    })
}

impl IntPack {
    fn code(&self, row: &[u8], column: usize) -> u32 {
        match self.per_word {
            None => field(row, column, self.bits),
            Some(count) => field(&row[column / count * 4..][..4], column % count, self.bits),
        }
    }

    /// Zero points are packed along rows: field `row` of a column's words.
    fn zero(&self, zeros: &StoredTensor, row: usize, group: usize) -> f32 {
        let stride = 4 * zeros.row_len();
        let word = |at: usize| zeros.bytes().get(at * stride + 4 * group..).and_then(|b| b.first_chunk::<4>()).copied();
        let first = row * self.bits / 32;
        let pair = [word(first).unwrap_or_default(), word(first + 1).unwrap_or_default()].concat();
        let field = u64::from_le_bytes(pair.try_into().unwrap_or_default()) >> (row * self.bits % 32);
        (field as u32 & ((1 << self.bits) - 1)) as f32 - (1 << (self.bits - 1)) as f32
    }
}

impl Packed for IntPack {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let (codes, scales) = (&self.parts[0], &self.parts[1]);
        let (bytes, groups) = (4 * codes.row_len(), scales.row_len());
        let group_size = self.width.div_ceil(groups.max(1));
        let middle = (1 << (self.bits - 1)) as f32;
        for (row, out) in rows.zip(out.chunks_exact_mut(self.width)) {
            let codes = &codes.bytes()[row * bytes..(row + 1) * bytes];
            let scales = floats(scales, row * groups, groups);
            let zeros: Vec<f32> =
                (0..groups).map(|g| self.zeros.as_ref().map_or(0.0, |zeros| self.zero(zeros, row, g))).collect();
            for (column, value) in out.iter_mut().enumerate() {
                let group = self.groups.as_ref().map_or(column / group_size, |groups| groups[column]);
                *value = (self.code(codes, column) as f32 - middle - zeros[group]) * scales[group];
            }
        }
    }
}
