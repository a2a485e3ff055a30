//! Plain numbers, rounded to the nearest.

use half::{bf16, f16};

pub(super) fn bf16_row(row: &[f32], out: &mut Vec<u8>) {
    row.iter().for_each(|value| out.extend(bf16::from_f32(*value).to_le_bytes()));
}

/// Values outside the range of half precision become its largest: an infinite weight makes every output NaN.
pub(super) fn f16_row(row: &[f32], out: &mut Vec<u8>) {
    let largest = f16::MAX.to_f32();
    row.iter().for_each(|value| out.extend(f16::from_f32(value.clamp(-largest, largest)).to_le_bytes()));
}

pub(super) fn f32_row(row: &[f32], out: &mut Vec<u8>) {
    row.iter().for_each(|value| out.extend(value.to_le_bytes()));
}
