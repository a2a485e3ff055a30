//! The element types, a file each, and the list of them.
//!
//! The readers here are plain loops in f32, in the order of operations of the formats' definition, so that their
//! results are exact to the bit. They are what fast kernels are compared with, and no fast kernels themselves.

use super::dtype::Format;

mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod iq_codes;
mod iq_grids;
mod k_scales;
mod mxfp4;
mod nvfp4;
mod plain;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod small_floats;
mod tq1_0;
mod tq2_0;

macro_rules! formats {
    ($($variant:ident = $format:path, $about:literal;)*) => {
        /// The type of a stored tensor's elements.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $(#[doc = $about] $variant,)*
        }

        /// All types with their formats.
        pub(super) const FORMATS: &[(DType, &Format)] = &[$((DType::$variant, &$format),)*];

        impl DType {
            /// How it is laid out and read.
            pub fn format(self) -> &'static Format {
                match self {
                    $(Self::$variant => &$format,)*
                }
            }
        }
    };
}

formats! {
    BF16 = plain::BF16, "bfloat16.";
    BOOL = plain::BOOL, "One byte, 0 or 1.";
    C64 = small_floats::C64, "Complex number of two single-precision ones.";
    F16 = plain::F16, "IEEE half precision.";
    F32 = plain::F32, "IEEE single precision.";
    F4 = small_floats::F4, "4-bit float (E2M1), two a byte.";
    F64 = plain::F64, "IEEE double precision.";
    F6_E2M3 = small_floats::F6_E2M3, "6-bit float, 2 of them exponent.";
    F6_E3M2 = small_floats::F6_E3M2, "6-bit float, 3 of them exponent.";
    F8_E4M3 = plain::F8_E4M3, "Float of 8 bits, 4 of them exponent, without infinities.";
    F8_E4M3FNUZ = small_floats::F8_E4M3FNUZ, "Float of 8 bits, 4 of them exponent, without infinities and negative zero.";
    F8_E5M2 = plain::F8_E5M2, "Float of 8 bits, 5 of them exponent.";
    F8_E5M2FNUZ = small_floats::F8_E5M2FNUZ, "Float of 8 bits, 5 of them exponent, without infinities and negative zero.";
    F8_E8M0 = plain::F8_E8M0, "Power of two, the exponent in a byte.";
    I16 = plain::I16, "Signed 16-bit integer.";
    I32 = plain::I32, "Signed 32-bit integer.";
    I64 = plain::I64, "Signed 64-bit integer.";
    I8 = plain::I8, "Signed 8-bit integer.";
    IQ1_M = iq1_m::FORMAT, "1.75 bits, codes of a grid, super-blocks of 256.";
    IQ1_S = iq1_s::FORMAT, "1.5 bits, codes of a grid, super-blocks of 256.";
    IQ2_S = iq2_s::FORMAT, "2.5 bits, codes of a grid, super-blocks of 256.";
    IQ2_XS = iq2_xs::FORMAT, "2.3 bits, codes of a grid, super-blocks of 256.";
    IQ2_XXS = iq2_xxs::FORMAT, "2.06 bits, codes of a grid, super-blocks of 256.";
    IQ3_S = iq3_s::FORMAT, "3.4 bits, codes of a grid, super-blocks of 256.";
    IQ3_XXS = iq3_xxs::FORMAT, "3.06 bits, codes of a grid, super-blocks of 256.";
    IQ4_NL = iq4_nl::FORMAT, "4 bits on an uneven scale, blocks of 32.";
    IQ4_XS = iq4_xs::FORMAT, "4 bits on an uneven scale, super-blocks of 256.";
    MXFP4 = mxfp4::FORMAT, "4-bit floats, blocks of 32, a power of two.";
    NVFP4 = nvfp4::FORMAT, "4-bit floats, groups of 16 with 8-bit float scales.";
    PACKED = plain::PACKED, "A weight of several tensors: codes, scales and what belongs to them.";
    Q1_0 = q1_0::FORMAT, "1 bit, blocks of 128, a scale.";
    Q2_0 = q2_0::FORMAT, "2 bits, blocks of 64, a scale.";
    Q2_K = q2_k::FORMAT, "2 bits, super-blocks of 256.";
    Q3_K = q3_k::FORMAT, "3 bits, super-blocks of 256.";
    Q4_0 = q4_0::FORMAT, "4 bits, blocks of 32, a scale.";
    Q4_1 = q4_1::FORMAT, "4 bits, blocks of 32, a scale and a minimum.";
    Q4_K = q4_k::FORMAT, "4 bits, super-blocks of 256.";
    Q5_0 = q5_0::FORMAT, "5 bits, blocks of 32, a scale.";
    Q5_1 = q5_1::FORMAT, "5 bits, blocks of 32, a scale and a minimum.";
    Q5_K = q5_k::FORMAT, "5 bits, super-blocks of 256.";
    Q6_K = q6_k::FORMAT, "6 bits, super-blocks of 256.";
    Q8_0 = q8_0::FORMAT, "8 bits, blocks of 32, a scale.";
    Q8_1 = q8_1::FORMAT, "8 bits, blocks of 32, a scale and a sum.";
    Q8_K = q8_k::FORMAT, "8 bits, super-blocks of 256.";
    TQ1_0 = tq1_0::FORMAT, "Three values, five a byte, super-blocks of 256.";
    TQ2_0 = tq2_0::FORMAT, "Three values in two bits, super-blocks of 256.";
    U16 = plain::U16, "Unsigned 16-bit integer.";
    U32 = plain::U32, "Unsigned 32-bit integer.";
    U64 = plain::U64, "Unsigned 64-bit integer.";
    U8 = plain::U8, "Unsigned 8-bit integer.";
}

/// Calls `read` for each block of `BYTES` bytes with the `ELEMS` values it becomes.
fn each_block<const BYTES: usize, const ELEMS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    read: impl Fn(&[u8; BYTES], &mut [f32; ELEMS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (values, _) = out.as_chunks_mut::<ELEMS>();
    for (block, values) in blocks.iter().zip(values) {
        read(block, values);
    }
}

/// The half-precision number at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
