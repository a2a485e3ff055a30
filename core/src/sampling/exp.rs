//! e^x for many x at once: plain arithmetic without branches or calls, so that the compiler makes vector code of a loop.
//!
//! x = n ln 2 + r with n whole and |r| <= ln 2 / 2; e^r is its Taylor series up to r^10, whose rest is below
//! 0.3466^11 / 11! = 2.2e-13 of the value; 2^n is put together from its bits.

use std::f64::consts::{LN_2, LOG2_E};

/// Below this e^x is taken as if x were this: 1e-304, which vanishes in any sum with a term of 1.
const LOWEST: f64 = -700.0;

/// Added to a number below 2^51, this leaves its nearest whole number in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// e^x for x up to 700. NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    // Written so that NaN passes.
    let x = if x < LOWEST { LOWEST } else { x };
    let shifted = x * LOG2_E + ROUND;
    let r = x - (shifted - ROUND) * LN_2;
    let mut sum = 1.0 / 3_628_800.0;
    for factor in [362_880.0, 40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        sum = sum * r + 1.0 / factor;
    }
    // The low bits of `shifted` are n, in two's complement; 1023 is the exponent of 1.
    sum * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
}

/// The sum of e^(x - max) over a row, in several running sums that are added at the end.
pub(super) fn sum_of_exp(row: &[f32], max: f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest: f64 = chunks.remainder().iter().map(|x| exp(f64::from(*x) - max)).sum();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += exp(f64::from(*x) - max);
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_library_function() {
        for i in 0..200_000 {
            let x = -700.0 + f64::from(i) * 0.003_501;
            let off = (exp(x) / x.exp() - 1.0).abs();
            // The series' rest and the rounding of n ln 2 for n up to 1010.
            assert!(off < 1e-12, "e^{x} is off by {off}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f64::NAN).is_nan());
        assert!(exp(f64::NEG_INFINITY) < 1e-300 && exp(f64::NEG_INFINITY) >= 0.0);
    }

    #[test]
    fn sums_every_element_once() {
        for width in [1, 7, 8, 9, 1000, 1003] {
            let row: Vec<f32> = (0..width).map(|i| -((i * 37 % 101) as f32) * 0.1).collect();
            let plain: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            assert!((sum_of_exp(&row, 0.0) / plain - 1.0).abs() < 1e-12, "width {width}");
        }
    }
}
