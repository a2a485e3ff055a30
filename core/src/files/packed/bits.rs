//! Small numbers: fields of a few bits, and floats of four and eight.

/// Field `index` of `bits` bits of a little-endian stream, the first in the lowest bits. Fields cross bytes and words.
pub(super) fn field(bytes: &[u8], index: usize, bits: usize) -> u32 {
    let bit = index * bits;
    let window = &bytes[bit / 8..(bit + bits).div_ceil(8)];
    let word = window.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    (word >> (bit % 8)) as u32 & ((1 << bits) - 1)
}

/// Values of the sixteen codes of E2M1.
pub(in crate::files) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of element `index` of nibbles in order, the even one in the low half of a byte.
pub(super) fn e2m1_at(bytes: &[u8], index: usize) -> f32 {
    E2M1[(bytes[index / 2] >> (4 * (index % 2)) & 15) as usize]
}

/// The value of an E4M3 number: no infinities, one NaN of each sign.
pub(crate) fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (byte >> 3 & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * power_of_two(i32::from(exponent) - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of an E5M2 number: the upper half of half precision.
pub(crate) fn e5m2(byte: u8) -> f32 {
    half::f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// The value of an E8M0 number: a power of two, or NaN.
pub(crate) fn e8m0(byte: u8) -> f32 {
    if byte == 255 { f32::NAN } else { power_of_two(i32::from(byte) - 127) }
}

fn power_of_two(exponent: i32) -> f32 {
    match exponent {
        ..=-127 => f32::from_bits(1 << (149 + exponent).clamp(0, 22)),
        _ => f32::from_bits(((exponent + 127) as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cross_words() {
        // Ten fields of three bits fill 30 bits; the eleventh lies in both words.
        let value: u64 = (0..16).fold(0, |word, i| word | (i % 8) << (3 * i));
        let bytes = value.to_le_bytes();
        assert!((0..16).all(|i| u64::from(field(&bytes, i, 3)) == i as u64 % 8));
    }

    #[test]
    fn floats_of_eight_bits() {
        assert_eq!((e4m3(0x7e), e4m3(0x01), e4m3(0xb8), e4m3(0x38)), (448.0, 1.0 / 512.0, -1.0, 1.0));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e8m0(255).is_nan());
        assert_eq!((e8m0(127), e8m0(130), e8m0(0)), (1.0, 8.0, 2f32.powi(-127)));
        assert_eq!((e5m2(0x3c), e5m2(0x7b)), (1.0, 57344.0));
    }
}
