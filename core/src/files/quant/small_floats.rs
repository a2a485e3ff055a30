//! Floats of four and six bits that fill bytes together, the first in the lowest bits, and complex numbers: types that
//! safetensors files have and few models use.

use super::each_block;
use crate::files::dtype::Format;
use crate::files::packed::E2M1;

pub(super) const F4: Format =
    Format { name: "F4", gguf_id: None, in_safetensors: true, block_elems: 2, block_bytes: 1, dequant: dequant_f4 };

pub(super) const F6_E2M3: Format = Format {
    name: "F6_E2M3",
    gguf_id: None,
    in_safetensors: true,
    block_elems: 4,
    block_bytes: 3,
    dequant: |bytes, out| dequant_f6(bytes, out, |code| small(code, 2, 3, 1)),
};

pub(super) const F6_E3M2: Format = Format {
    name: "F6_E3M2",
    gguf_id: None,
    in_safetensors: true,
    block_elems: 4,
    block_bytes: 3,
    dequant: |bytes, out| dequant_f6(bytes, out, |code| small(code, 3, 2, 3)),
};

pub(super) const F8_E4M3FNUZ: Format = Format {
    name: "F8_E4M3FNUZ",
    gguf_id: None,
    in_safetensors: true,
    block_elems: 1,
    block_bytes: 1,
    dequant: |bytes, out| dequant_fnuz(bytes, out, |code| small(code, 4, 3, 8)),
};

pub(super) const F8_E5M2FNUZ: Format = Format {
    name: "F8_E5M2FNUZ",
    gguf_id: None,
    in_safetensors: true,
    block_elems: 1,
    block_bytes: 1,
    dequant: |bytes, out| dequant_fnuz(bytes, out, |code| small(code, 5, 2, 16)),
};

/// A complex number has no value as one f32: it reads as none.
pub(super) const C64: Format = Format {
    name: "C64",
    gguf_id: None,
    in_safetensors: true,
    block_elems: 1,
    block_bytes: 8,
    dequant: |_, out| out.fill(f32::NAN),
};

fn dequant_f4(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |byte: &[u8; 1], values: &mut [f32; 2]| {
        *values = [E2M1[usize::from(byte[0] & 15)], E2M1[usize::from(byte[0] >> 4)]];
    });
}

fn dequant_f6(bytes: &[u8], out: &mut [f32], widen: fn(u8) -> f32) {
    each_block(bytes, out, |block: &[u8; 3], values: &mut [f32; 4]| {
        let word = u32::from_le_bytes([block[0], block[1], block[2], 0]);
        *values = std::array::from_fn(|i| widen((word >> (6 * i)) as u8 & 63));
    });
}

/// Types without infinities whose negative zero is the one value that is no number.
fn dequant_fnuz(bytes: &[u8], out: &mut [f32], widen: fn(u8) -> f32) {
    for (byte, value) in bytes.iter().zip(out) {
        *value = if *byte == 0x80 { f32::NAN } else { widen(*byte) };
    }
}

/// The value of a code of a sign, `exponent` bits and `fraction` bits.
fn small(code: u8, exponent: u32, fraction: u32, bias: i32) -> f32 {
    let power = i32::from(code >> fraction) & ((1 << exponent) - 1);
    let part = f32::from(code & ((1 << fraction) - 1)) / (1u32 << fraction) as f32;
    let (whole, power) = if power == 0 { (0.0, 1) } else { (1.0, power) };
    let magnitude = (whole + part) * 2f32.powi(power - bias);
    if code >> (exponent + fraction) & 1 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_the_definitions() {
        let mut out = [0.0; 2];
        dequant_f4(&[0x97], &mut out);
        assert_eq!(out, [6.0, -0.5]);
        // OCP microscaling formats: largest 7.5 and 28, smallest 0.125 and 0.0625.
        assert_eq!((small(0b011111, 2, 3, 1), small(0b000001, 2, 3, 1)), (7.5, 0.125));
        assert_eq!((small(0b111111, 3, 2, 3), small(0b000001, 3, 2, 3)), (-28.0, 0.0625));
        let mut out = [0.0; 4];
        dequant_f6(&[0b1100_0001, 0b1111_0111, 0b0000_0011], &mut out, f32::from);
        assert_eq!(out, [1.0, 31.0, 63.0, 0.0]);
        // Largest 240 and 57344 (torch.finfo).
        assert_eq!((small(0x7f, 4, 3, 8), small(0x7f, 5, 2, 16)), (240.0, 57344.0));
        let mut out = [0.0];
        dequant_fnuz(&[0x80], &mut out, |_| 0.0);
        assert!(out[0].is_nan());
    }
}
