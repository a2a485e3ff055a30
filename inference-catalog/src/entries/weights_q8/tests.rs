//! Tests of 8-bit weights.

use super::pack::{BLOCK, BLOCK_BYTES, pack};
use super::*;
use crit_kernels::plugin::conformance;

#[test]
fn keeps_the_contract() {
    conformance::check(&PLUGIN).unwrap();
}

#[test]
fn a_packed_row_is_at_most_half_a_step_off_as_the_model_files_format_reads_it() {
    let values: Vec<f32> = (0..3 * 64).map(|i| ((i * 71 % 199) as f32 - 99.0) / 300.0).collect();
    let tensor = StoredTensor::from_f32("w", &[3, 64], &values).unwrap();
    let bytes = pack(&tensor).unwrap();
    assert_eq!(bytes.len(), 3 * 64 / BLOCK * BLOCK_BYTES);
    let weight = Matrix::new(format("Q8_0").unwrap(), 3, 64, &bytes).unwrap();
    let mut row = vec![0.0; 64];
    for i in 0..3 {
        weight.dequant_row(i, &mut row);
        for (block, given) in row.chunks(BLOCK).zip(values[i * 64..(i + 1) * 64].chunks(BLOCK)) {
            let largest = given.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            // Half a step; the scale's rounding to f16 (2^-11) moves the largest code by up to 127 of those.
            let limit = largest / 127.0 * (0.5 + 127.0 / 2048.0);
            for (stored, given) in block.iter().zip(given) {
                assert!((stored - given).abs() <= limit, "{given} is stored as {stored}");
            }
        }
    }
}

#[test]
fn zeros_stay_zero() {
    let tensor = StoredTensor::from_f32("w", &[1, 32], &[0.0; 32]).unwrap();
    assert!(pack(&tensor).unwrap().iter().all(|byte| *byte == 0));
}
