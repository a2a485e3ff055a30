//! Q6_K: for each of sixteen groups of 16 a scale is searched, all are rounded to signed bytes under the super-block's
//! half-precision unit, and the codes are chosen for the rounded ones.

use super::{each, half, search};

pub(super) fn row(row: &[f32], out: &mut Vec<u8>) {
    each(row, |block: &[f32; 256]| {
        let groups = block.as_chunks::<16>().0;
        let mut scales = [0f32; 16];
        for (scale, group) in scales.iter_mut().zip(groups) {
            *scale = search::signed(group, 32).0;
        }
        let extreme = scales.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        // The largest becomes -128, the code with one more step of room.
        let (unit_bytes, unit) = half(extreme / -128.0);
        let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
        let scale_codes = scales.map(|scale| (scale * inverse).round().clamp(-128.0, 127.0) as i8);
        let mut codes = [32u8; 256];
        for (j, group) in groups.iter().enumerate() {
            let scale = unit * f32::from(scale_codes[j]);
            if scale == 0.0 {
                continue;
            }
            for (code, value) in codes[16 * j..].iter_mut().zip(group) {
                *code = ((value / scale).round_ties_even().clamp(-32.0, 31.0) + 32.0) as u8;
            }
        }
        // Each half of 128 is four quarters of 32, of which two share a byte of low bits and all share one of high bits.
        for half in codes.as_chunks::<128>().0 {
            let quarter = |q: usize, l: usize| half[32 * q + l];
            out.extend((0..64).map(|i| quarter(i / 32, i % 32) & 15 | (quarter(i / 32 + 2, i % 32) & 15) << 4));
        }
        for half in codes.as_chunks::<128>().0 {
            let high = |l: usize, q: usize| (half[32 * q + l] >> 4) << (2 * q);
            out.extend((0..32).map(|l| high(l, 0) | high(l, 1) | high(l, 2) | high(l, 3)));
        }
        out.extend(scale_codes.map(|code| code as u8));
        out.extend(unit_bytes);
    });
}
