//! MLX: integers packed along rows with a scale and a bias for each group (value = code · scale + bias), or small floats
//! with scales alone. Single modules may have sizes of their own.

use super::bits::{E2M1, e4m3, e8m0, field};
use super::{Packed, Tensors, WeightFormat, floats, matrix, method, shaped};
use crate::files::{DType, StoredTensor};
use crate::json::Config;
use std::ops::Range;
use std::sync::Arc;

pub(super) const FORMAT: WeightFormat = WeightFormat {
    name: "mlx",
    about: "2 to 8 bits packed along rows with scales and biases of groups; or mxfp4, mxfp8, nvfp4 with scales alone",
    written_by: "MLX (`quantization` with group_size, bits, mode)",
    detect: |settings| method(settings).is_none() && settings.has("group_size") && settings.has("bits"),
    gather,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

#[derive(Debug)]
struct Mlx {
    /// Codes, scales, biases where there are any.
    parts: Vec<StoredTensor>,
    mode: Mode,
    group: usize,
    bits: usize,
    width: usize,
}

fn gather(settings: &Config, tensors: &mut Tensors) -> Result<(), String> {
    for module in tensors.ending(".scales") {
        let codes = tensors.take(&module, ".weight")?;
        let scales = tensors.take(&module, ".scales")?;
        let stored = codes.stored_name().strip_suffix(".weight").unwrap_or(&module).to_string();
        let own = settings.get(&stored).and_then(|own| own.as_object());
        let size = |key: &str| {
            let stated = own.and_then(|own| own.get(key)).or(settings.get(key)).and_then(|size| size.as_u64());
            stated.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0)
        };
        let stated = own.and_then(|own| own.get("mode")).or(settings.get("mode")).and_then(|mode| mode.as_str());
        let mode = match stated {
            None | Some("affine") => Mode::Affine,
            Some("mxfp4") => Mode::Mxfp4,
            Some("mxfp8") => Mode::Mxfp8,
            Some("nvfp4") => Mode::Nvfp4,
            Some(other) => return Err(format!("the mode `{other}` of `{module}` is not read")),
        };
        let (Some(group), Some(bits)) = (size("group_size"), size("bits").filter(|bits| *bits <= 8)) else {
            return Err(format!("the settings have no `group_size` and `bits` for `{module}`"));
        };
        let (rows, words) = matrix(&codes)?;
        let width = words * 32 / bits;
        shaped(&scales, &[rows, width.div_ceil(group)])?;
        let is_bytes = scales.dtype() == DType::U8;
        if codes.dtype() != DType::U32 || is_bytes == (mode == Mode::Affine) {
            return Err(format!("`{module}` has codes of type {} and scales of {}", codes.dtype(), scales.dtype()));
        }
        let biases = match mode {
            Mode::Affine => Some(tensors.take(&module, ".biases")?),
            _ => None,
        };
        if let Some(biases) = &biases {
            shaped(biases, scales.shape())?;
        }
        let parts = [codes, scales].into_iter().chain(biases).collect();
        let weight = Mlx { parts, mode, group, bits, width };
        tensors.put(format!("{module}.weight"), FORMAT.name, &[rows, width], Arc::new(weight));
    }
    Ok(())
}

impl Packed for Mlx {
    fn parts(&self) -> &[StoredTensor] {
        &self.parts
    }

    fn rows(&self) -> usize {
        self.parts[0].rows()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let (codes, scales) = (&self.parts[0], &self.parts[1]);
        let (bytes, groups) = (4 * codes.row_len(), scales.row_len());
        for (row, out) in rows.zip(out.chunks_exact_mut(self.width.max(1))) {
            let codes = &codes.bytes()[row * bytes..(row + 1) * bytes];
            let numbers = |tensor| floats(tensor, row * groups, groups);
            let bytes_of = &scales.bytes()[(row * groups).min(scales.bytes().len())..];
            match self.mode {
                Mode::Affine => {
                    let (scales, biases) = (numbers(scales), numbers(&self.parts[2]));
                    for (i, value) in out.iter_mut().enumerate() {
                        let code = field(codes, i, self.bits) as f32;
                        // One rounding, as the library's kernels do it.
                        *value = code.mul_add(scales[i / self.group], biases[i / self.group]);
                    }
                }
                _ => {
                    for (i, value) in out.iter_mut().enumerate() {
                        let code = field(codes, i, self.bits);
                        let number = if self.bits == 4 { E2M1[code as usize & 15] } else { e4m3(code as u8) };
                        let scale = bytes_of[i / self.group];
                        *value = number * if self.mode == Mode::Nvfp4 { e4m3(scale) } else { e8m0(scale) };
                    }
                }
            }
        }
    }
}
