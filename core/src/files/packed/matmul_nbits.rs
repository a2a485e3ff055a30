//! ONNX Runtime's MatMulNBits: blocks along rows, codes in bytes from the low bits up; value = (code − zero) · scale. The
//! graph's reader calls [`weight`] with a node's initialisers; nothing in a configuration tells of it.

use super::bits::field;
use super::{Packed, WeightFormat, floats};
use crate::files::{DType, StoredTensor};
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "matmul_nbits",
    about: "2, 4 or 8 bits in blocks along rows with scales and packed or plain zero points",
    written_by: "ONNX Runtime (com.microsoft.MatMulNBits)",
    detect: |_| false,
    gather: |_, _| Ok(()),
};

/// Attributes of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Outputs.
    pub(crate) rows: usize,
    /// Inputs.
    pub(crate) width: usize,
    /// Bits of a code.
    pub(crate) bits: usize,
    /// Elements of a block.
    pub(crate) block: usize,
}

#[derive(Debug)]
struct NBits {
    /// Codes, scales, zero points where there are any.
    parts: Vec<StoredTensor>,
    sizes: Sizes,
}

/// The weight `name` of a node with these initialisers.
///
/// # Errors
/// Sizes that do not fit.
pub(crate) fn weight(
    name: &str,
    sizes: Sizes,
    codes: StoredTensor,
    scales: StoredTensor,
    zeros: Option<StoredTensor>,
) -> Result<StoredTensor, String> {
    let Sizes { rows, width, bits, block } = sizes;
    if !matches!(bits, 2 | 4 | 8) || block < 16 || !block.is_power_of_two() {
        return Err(format!("`{name}` has {bits} bits in blocks of {block}"));
    }
    let blocks = width.div_ceil(block);
    let zeros_fit = |rows: usize, blocks: usize| {
        zeros.as_ref().is_none_or(|zeros| match zeros.dtype() {
            DType::U8 => zeros.elems() == rows * (blocks * bits).div_ceil(8),
            dtype => dtype.is_float() && zeros.elems() == rows * blocks,
        })
    };
    let count = rows.checked_mul(blocks).and_then(|count| count.checked_mul(block)?.checked_mul(bits));
    let fits = count.is_some_and(|bits| codes.elems() == bits / 8) && codes.dtype() == DType::U8;
    if !fits || !scales.dtype().is_float() || scales.elems() != rows * blocks || !zeros_fit(rows, blocks) {
        return Err(format!("the parts of `{name}` do not fit {rows} rows of {width} in blocks of {block}"));
    }
    let parts = [codes, scales].into_iter().chain(zeros).collect();
    Ok(StoredTensor::packed(name, FORMAT.name, &[rows, width], Arc::new(NBits { parts, sizes })))
}

impl NBits {
    /// Zero points of the blocks of `row`; packed ones fill whole bytes for each row.
    fn zeros(&self, row: usize, blocks: usize) -> Vec<f32> {
        let bits = self.sizes.bits;
        match self.parts.get(2) {
            None => vec![(1u32 << (bits - 1)) as f32; blocks],
            Some(zeros) if zeros.dtype() == DType::U8 => {
                let bytes = (blocks * bits).div_ceil(8);
                let packed = &zeros.bytes()[row * bytes..(row + 1) * bytes];
                (0..blocks).map(|block| field(packed, block, bits) as f32).collect()
            }
            Some(zeros) => floats(zeros, row * blocks, blocks),
        }
    }
}

impl Packed for NBits {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.sizes.rows
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let Sizes { width, bits, block, .. } = self.sizes;
        let blocks = width.div_ceil(block);
        let bytes = blocks * block * bits / 8;
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let codes = &self.parts[0].bytes()[row * bytes..(row + 1) * bytes];
            let (scales, zeros) = (floats(&self.parts[1], row * blocks, blocks), self.zeros(row, blocks));
            for (i, value) in out.iter_mut().enumerate() {
                *value = (field(codes, i, bits) as f32 - zeros[i / block]) * scales[i / block];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_plain_and_absent_zero_points() {
        let sizes = Sizes { rows: 2, width: 20, bits: 4, block: 16 };
        let codes: Vec<u8> = (0..32).map(|i| (i % 16) | (15 - i % 16) << 4).collect();
        let codes = StoredTensor::from_bytes("b", DType::U8, &[2, 2, 8], codes).unwrap();
        let scales = StoredTensor::from_f32("s", &[4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let read = |zeros| {
            let made = weight("w", sizes, codes.clone(), scales.clone(), zeros).unwrap();
            let mut out = vec![0.0; 20];
            made.dequant_rows(1..2, &mut out).unwrap();
            out
        };
        let packed = StoredTensor::from_bytes("z", DType::U8, &[2], vec![0x00, 0x31]).unwrap();
        let plain = StoredTensor::from_f32("z", &[4], &[0.0, 0.0, 1.0, 3.0]).unwrap();
        let out = read(Some(packed));
        assert_eq!(out, read(Some(plain)));
        // Byte 16 holds codes 0 and 15; byte 24, the first of the second block, 8 and 7.
        assert_eq!((out[0], out[1], out[16], out[17]), (-3.0, 42.0, 20.0, 16.0));
        assert_eq!(read(None)[0], -24.0);
        assert!(weight("w", Sizes { bits: 3, ..sizes }, codes.clone(), scales.clone(), None).is_err());
    }
}
