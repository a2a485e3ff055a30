//! bitsandbytes with four bits: codes of a table (NF4, FP4) over the flat matrix, the even element in the high nibble, with
//! the largest magnitude of each block; those may be stored as bytes of a second table with an offset.

use super::{Packed, Tensors, WeightFormat, floats, method};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "bnb_4bit",
    about: "nf4 or fp4 codes of a table in the file (`weight.quant_map`) times the largest of each block (`weight.absmax`, maybe nested)",
    written_by: "quant_method bitsandbytes (load_in_4bit)",
    detect: |settings| method(settings) == Some("bitsandbytes"),
    gather,
};

/// Ends of the names under which the rest of a weight's description lies as JSON bytes.
const STATES: &[&str] = &[".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"];

#[derive(Debug)]
struct Bnb4 {
    /// Codes, the largest of each block, the table, then the nested ones.
    parts: Vec<StoredTensor>,
    table: Vec<f32>,
    rows: usize,
    width: usize,
    block: usize,
    nested: Option<Nested>,
}

#[derive(Debug)]
struct Nested {
    table: Vec<f32>,
    largest: Vec<f32>,
    block: usize,
    offset: f32,
}

fn gather(_: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for end in STATES {
        for module in tensors.ending(end) {
            let state = tensors.take(&module, end)?;
            let state = Config::parse(state.bytes(), state.name()).map_err(|error| error.to_string())?;
            let shape = state.opt_usize_list("shape").ok().flatten().unwrap_or_default();
            let size = |key: &str| state.opt_usize(key).ok().flatten().filter(|size| *size > 0);
            let ([rows, width], Some(block)) = (&shape[..], size("blocksize")) else {
                return Err(format!("the state of `{module}.weight` has no shape of two dimensions and no block size"));
            };
            let mut take = |end: &str| tensors.take(&module, end);
            let mut parts = vec![take(".weight")?, take(".weight.absmax")?, take(".weight.quant_map")?];
            let count = rows.checked_mul(*width).ok_or("a size overflows")?;
            let blocks = count.div_ceil(block);
            if parts[0].elems() != count.div_ceil(2) || parts[1].elems() != blocks || parts[2].elems() != 16 {
                return Err(format!(
                    "the parts of `{module}.weight` do not fit {rows} rows of {width} in blocks of {block}"
                ));
            }
            super::of_bytes(&parts[0], 1)?;
            let nested = if parts[1].dtype() == DType::U8 {
                let (largest, table) = (take(".weight.nested_absmax")?, take(".weight.nested_quant_map")?);
                let block = size("nested_blocksize").ok_or("the state has no nested block size")?;
                if largest.elems() != blocks.div_ceil(block) || table.elems() != 256 {
                    return Err(format!("the nested parts of `{module}.weight` do not fit {blocks} blocks"));
                }
                let offset = state.opt_f64("nested_offset").ok().flatten().unwrap_or(0.0) as f32;
                let all = |tensor: &StoredTensor| floats(tensor, 0, tensor.elems());
                let nested = Nested { table: all(&table), largest: all(&largest), block, offset };
                parts.extend([largest, table]);
                Some(nested)
            } else {
                None
            };
            let table = floats(&parts[2], 0, 16);
            let weight = Bnb4 { parts, table, rows: *rows, width: *width, block, nested };
            tensors.put(format!("{module}.weight"), FORMAT.name, &[*rows, *width], Arc::new(weight));
        }
    }
    Ok(())
}

impl Bnb4 {
    fn largest(&self, block: usize) -> f32 {
        match &self.nested {
            None => floats(&self.parts[1], block, 1)[0],
            Some(nested) => {
                let code = self.parts[1].bytes()[block];
                nested.table[usize::from(code)] * nested.largest[block / nested.block] + nested.offset
            }
        }
    }
}

impl Packed for Bnb4 {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let codes = self.parts[0].bytes();
        let mut known = (usize::MAX, 0.0);
        for (value, at) in out.iter_mut().zip(rows.start * self.width..) {
            if known.0 != at / self.block {
                known = (at / self.block, self.largest(at / self.block));
            }
            let code = codes[at / 2] >> (4 * (1 - at % 2)) & 15;
            *value = self.table[usize::from(code)] * known.1;
        }
    }
}
