//! Element types of stored tensors: plain numbers and quantised blocks.
//!
//! A type is one file in `quant/` with its [`Format`], and one line in the list there. A block holds `block_elems`
//! consecutive elements of a row in `block_bytes` bytes; for plain numbers a block is one element.

pub use super::quant::DType;
use super::quant::FORMATS;

/// How a type is laid out and read.
#[derive(Debug)]
pub struct Format {
    /// Its name in the field, as GGUF and safetensors write it.
    pub name: &'static str,
    /// Its number in GGUF files.
    pub gguf_id: Option<u32>,
    /// Whether safetensors files have it, under `name`.
    pub in_safetensors: bool,
    /// Elements of a block.
    pub block_elems: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Widens whole blocks to f32. The output has `block_elems` values for each `block_bytes` bytes given.
    pub dequant: fn(&[u8], &mut [f32]),
}

impl DType {
    /// Its name in the field.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// Elements of a block (1 for plain numbers).
    pub fn block_elems(self) -> usize {
        self.format().block_elems
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.format().block_bytes
    }

    /// Whether elements are stored in quantised blocks, or as codes with scales elsewhere.
    pub fn is_quantised(self) -> bool {
        self.block_elems() > 1 || self == Self::PACKED
    }

    /// Whether elements are plain floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::F64)
    }

    /// The type with this number in GGUF files.
    pub fn from_gguf(id: u32) -> Option<Self> {
        Self::find(|format| format.gguf_id == Some(id))
    }

    /// The type with this name in safetensors files.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Self::find(|format| format.in_safetensors && format.name == name)
    }

    /// All types, in the order of the list.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(|(dtype, _)| *dtype)
    }

    /// The names of all types for which `keep` holds, for messages.
    pub fn names(keep: impl Fn(&Format) -> bool) -> String {
        let names: Vec<_> = FORMATS.iter().map(|(_, format)| *format).filter(|f| keep(f)).map(|f| f.name).collect();
        names.join(" ")
    }

    /// Bytes of a row of `elems` elements, if they fill whole blocks and the size can be counted.
    pub fn row_bytes(self, elems: usize) -> Option<usize> {
        if !elems.is_multiple_of(self.block_elems()) {
            return None;
        }
        (elems / self.block_elems()).checked_mul(self.block_bytes())
    }

    /// Widens whole blocks to f32.
    ///
    /// # Panics
    /// If `out` has not exactly the values that `bytes` holds.
    pub fn dequant(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(self.row_bytes(out.len()), Some(bytes.len()), "{} bytes and values of a row", self.name());
        (self.format().dequant)(bytes, out);
    }

    fn find(is_it: impl Fn(&Format) -> bool) -> Option<Self> {
        FORMATS.iter().find(|(_, format)| is_it(format)).map(|(dtype, _)| *dtype)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_type_has_its_own_name_and_number_and_consistent_blocks() {
        for (i, (dtype, format)) in FORMATS.iter().enumerate() {
            assert_eq!(dtype.name(), format.name);
            for (_, other) in &FORMATS[i + 1..] {
                assert_ne!(format.name, other.name);
                assert!(format.gguf_id.is_none() || format.gguf_id != other.gguf_id, "{}", other.name);
            }
            let mut out = vec![f32::NAN; format.block_elems * 2];
            dtype.dequant(&vec![0; format.block_bytes * 2], &mut out);
            // The smallest power of two is what a zero exponent stands for.
            let zero = if *dtype == DType::F8_E8M0 { 2f32.powi(-127) } else { 0.0 };
            let is_number = *dtype != DType::C64;
            assert!(!is_number || out.iter().all(|value| *value == zero), "{}: zero bytes are zeros", format.name);
        }
    }

    #[test]
    fn plain_numbers_widen() {
        let mut out = [0.0f32; 2];
        DType::BF16.dequant(&[0x80, 0x3f, 0x00, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        DType::F16.dequant(&[0x00, 0x3c, 0xff, 0x7b], &mut out);
        assert_eq!(out, [1.0, 65504.0]);
        DType::I8.dequant(&[0xff, 7], &mut out);
        assert_eq!(out, [-1.0, 7.0]);
        assert_eq!(DType::Q4_K.row_bytes(100), None);
        assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
    }
}
