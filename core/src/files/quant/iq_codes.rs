//! What the IQ types share: magnitudes from a grid, and signs in bits.

/// Values of the grids of IQ2 types.
pub(super) const IQ2: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
/// Values of IQ3_XXS's grid.
pub(super) const IQ3_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// Values of IQ3_S's grid.
pub(super) const IQ3_S: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// Seven stored signs and the eighth, which makes their number even.
pub(super) fn signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Eight values of an entry of two bits each, times `scale`, negative where a bit of `signs` is set.
pub(super) fn eight(out: &mut [f32], scale: f32, entry: u16, values: &[f32; 4], signs: u8) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = signed(scale * values[usize::from(entry >> (2 * i) & 3)], signs >> i);
    }
}

/// Four values of an entry of three bits each, likewise.
pub(super) fn four(out: &mut [f32], scale: f32, entry: u16, values: &[f32; 8], signs: u8) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = signed(scale * values[usize::from(entry >> (3 * i) & 7)], signs >> i);
    }
}

fn signed(value: f32, sign: u8) -> f32 {
    value * if sign & 1 == 0 { 1.0 } else { -1.0 }
}
