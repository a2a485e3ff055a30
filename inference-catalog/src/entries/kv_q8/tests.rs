//! Tests of 8-bit KV.

use super::*;
use crit_kernels::plugin::conformance;

fn format(options: &str) -> Box<dyn KvFormat> {
    match conformance::made(&PLUGIN, options).unwrap() {
        Instance::KvCache(format) => format,
        _ => panic!("not a KV format"),
    }
}

fn round_trip(format: &dyn KvFormat, row: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; format.row_bytes(row.len())];
    format.write(row, &mut bytes);
    let mut out = vec![0.0; row.len()];
    format.read(&bytes, row.len(), &mut out);
    out
}

#[test]
fn keeps_the_contract() {
    conformance::check(&PLUGIN).unwrap();
}

#[test]
fn a_row_takes_about_half_of_f16() {
    assert_eq!(format("{}").row_bytes(128), 132);
    assert_eq!(format(r#"{"scale_per": "32"}"#).row_bytes(80), 80 + 3 * 4);
}

#[test]
fn an_element_is_at_most_half_a_step_off() {
    let row: Vec<f32> = (0..100).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
    let largest = row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    // Half a step, and the rounding of the division and the product.
    let limit = largest / 127.0 * 0.5 * 1.0001;
    for (stored, given) in round_trip(format("{}").as_ref(), &row).iter().zip(&row) {
        assert!((stored - given).abs() <= limit, "{given} came back as {stored}");
    }
}

#[test]
fn a_group_with_an_outlier_leaves_the_others_exact() {
    let mut row = vec![0.01f32; 64];
    row[5] = 100.0;
    let fine = round_trip(format(r#"{"scale_per": "32"}"#).as_ref(), &row);
    assert!((fine[40] - 0.01).abs() < 1e-4, "{}", fine[40]);
    let coarse = round_trip(format("{}").as_ref(), &row);
    assert_eq!(coarse[40], 0.0, "with one scale the small ones vanish beside it");
}
