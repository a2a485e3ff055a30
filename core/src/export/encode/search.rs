//! Scales with little error: codes are rounded at several trial scales, for each the best scale of its codes follows by
//! least squares, and the trial whose codes then fit best wins.
//!
//! Large values weigh more, as in products they do more harm: the weight of a value's squared error is its own square
//! (signed codes), or grows with its magnitude above the block's average (codes with a minimum).

/// Steps around the plain scale, in tenths of a code.
const TRIALS: std::ops::RangeInclusive<i32> = -9..=9;

/// Values worked on side by side, each lane with sums of its own.
const LANES: usize = 8;

/// The nearest whole number of a value below 2^22 in magnitude, ties to even: the addition leaves no bits for fractions.
/// Unlike the library's rounding this is two instructions on every machine.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    const UNITS: f32 = 12_582_912.0;
    (value + UNITS) - UNITS
}

#[inline(always)]
fn within(value: f32, low: f32, high: f32) -> f32 {
    let raised = if value > low { value } else { low };
    if raised < high { raised } else { high }
}

fn total(lanes: [f32; LANES]) -> f32 {
    lanes.iter().sum()
}

/// A scale and codes in `-levels .. levels` for values around zero.
pub(super) fn signed<const N: usize>(values: &[f32; N], levels: i32) -> (f32, [i8; N]) {
    let (scale, inverse) = signed_scale(values, levels);
    let (low, high) = (-levels as f32, levels as f32 - 1.0);
    (scale, values.map(|value| within(nearest(value * inverse), low, high) as i8))
}

/// The scale for codes in `-levels .. levels`, and what values are multiplied by before they are rounded to codes; whole
/// lanes of values are looked at.
#[allow(clippy::needless_range_loop, reason = "counted lanes are what the compiler makes vectors of")]
pub(super) fn signed_scale(values: &[f32], levels: i32) -> (f32, f32) {
    let extreme = values.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if extreme == 0.0 || !extreme.is_finite() {
        return (0.0, 0.0);
    }
    let (low, high) = (-levels as f32, levels as f32 - 1.0);
    let mut best = (0.0, 0.0, 0.0);
    for trial in TRIALS {
        // The extreme becomes the code with one more step of room.
        let inverse = -(levels as f32 + 0.1 * trial as f32) / extreme;
        let (mut along, mut square) = ([0f32; LANES], [0f32; LANES]);
        for chunk in values.as_chunks::<LANES>().0 {
            for j in 0..LANES {
                let value = chunk[j];
                let code = within(nearest(value * inverse), low, high);
                let weighted = value * value * code;
                along[j] += weighted * value;
                square[j] += weighted * code;
            }
        }
        let (along, square) = (total(along), total(square));
        // With the best scale, along / square, the error is the values' own square less this.
        let gain = if square > 0.0 { along * along / square } else { 0.0 };
        if gain > best.0 {
            best = (gain, along / square, inverse);
        }
    }
    (best.1, best.2)
}

/// A scale and a minimum (both at least 0, the minimum to be subtracted) for codes `0 ..= levels`.
pub(super) fn with_minimum<const N: usize>(values: &[f32; N], levels: f32) -> (f32, f32) {
    let (low, high) = values.iter().fold((0f32, f32::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    if high <= low || !(high - low).is_finite() {
        // All one value at or below zero: the minimum is the value.
        return (0.0, -low);
    }
    let weights = weights(values);
    let (sum_w, sum_x) = values.iter().zip(&weights).fold((0f32, 0f32), |(w, x), (v, q)| (w + q, x + q * v));
    let plain = (high - low) / levels;
    let mut best = (error(values, &weights, plain, low, levels), plain, low);
    // Codes of scales from well below to well above the plain one; each with its own best scale and minimum.
    for trial in 0..=20 {
        let inverse = (levels - 1.0 + 0.1 * trial as f32) / (high - low);
        let (sum_l, sum_l2, sum_xl) = sums(values, &weights, inverse, low, levels);
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if minimum > 0.0 {
            // A positive offset cannot be stored.
            minimum = 0.0;
            scale = sum_xl / sum_l2;
        }
        if scale <= 0.0 {
            continue;
        }
        let found = error(values, &weights, scale, minimum, levels);
        if found < best.0 {
            best = (found, scale, minimum);
        }
    }
    (best.1, -best.2)
}

/// What the squared error of each value counts.
pub(super) fn weights<const N: usize>(values: &[f32; N]) -> [f32; N] {
    let average = (values.iter().map(|v| v * v).sum::<f32>() / N as f32).sqrt();
    values.map(|v| average + v.abs())
}

/// Weighted sums of codes, of their squares, and of their products with the values.
#[allow(clippy::needless_range_loop, reason = "counted lanes are what the compiler makes vectors of")]
fn sums<const N: usize>(values: &[f32; N], weights: &[f32; N], inverse: f32, low: f32, levels: f32) -> (f32, f32, f32) {
    let (mut l, mut l2, mut xl) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
    for (values, weights) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for j in 0..LANES {
            let code = within(nearest(inverse * (values[j] - low)), 0.0, levels);
            let weighted = weights[j] * code;
            l[j] += weighted;
            l2[j] += weighted * code;
            xl[j] += weighted * values[j];
        }
    }
    (total(l), total(l2), total(xl))
}

#[allow(clippy::needless_range_loop, reason = "counted lanes are what the compiler makes vectors of")]
pub(super) fn error<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    scale: f32,
    minimum: f32,
    levels: f32,
) -> f32 {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut sum = [0f32; LANES];
    for (values, weights) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for j in 0..LANES {
            let code = within(nearest((values[j] - minimum) * inverse), 0.0, levels);
            let off = scale * code + minimum - values[j];
            sum[j] += weights[j] * off * off;
        }
    }
    total(sum)
}
