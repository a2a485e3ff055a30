//! The contract of a KV format: a row comes back near enough, from its own bytes alone, wherever they lie.
//!
//! Appending, truncating and sharing of blocks are the store's; a format keeps them right by keeping rows apart: a row's
//! bytes depend on the row alone, every byte of them is written, and rows are read one like many.

use super::{Numbers, Verdict, distance_ppm, require};
use crate::exec::KvFormat;
use crit_core::plugin::Manifest;

/// Row lengths of current models, and some odd ones.
const DIMS: [usize; 7] = [16, 40, 64, 80, 96, 128, 256];

/// What f16 takes, 2^-12 of each element, is far below; 8 bits with a scale a row take about 0.6 %.
const DEFAULT_PPM: u32 = 10_000;

pub(super) fn check(format: &dyn KvFormat, manifest: &Manifest) -> Verdict {
    let limit = manifest.error_ppm.unwrap_or(DEFAULT_PPM);
    require(!format.name().is_empty(), || "it has no name".into())?;
    for dim in DIMS {
        let bytes = format.row_bytes(dim);
        require(bytes > 0, || format!("a row of {dim} takes no bytes"))?;
        near(format, dim, limit)?;
        apart(format, dim)?;
        special(format, dim)?;
    }
    Ok(())
}

/// Rows of any usual size come back within the limit.
fn near(format: &dyn KvFormat, dim: usize, limit: u32) -> Verdict {
    let mut numbers = Numbers(17);
    for scale in [1e-3, 0.1, 1.0, 30.0, 1e3] {
        let row: Vec<f32> = (0..dim).map(|_| numbers.normal() * scale).collect();
        let back = round_trip(format, &row);
        let ppm = distance_ppm(&back, &row);
        require(ppm <= u64::from(limit), || {
            format!("a row of {dim} numbers of size {scale} comes back {ppm} ppm off, at most {limit} are allowed")
        })?;
    }
    Ok(())
}

fn apart(format: &dyn KvFormat, dim: usize) -> Verdict {
    let mut numbers = Numbers(23);
    let bytes = format.row_bytes(dim);
    let rows: Vec<Vec<f32>> = (0..5).map(|_| (0..dim).map(|_| numbers.normal()).collect()).collect();
    // One byte off, so that rows lie at any alignment; and over two different leftovers.
    let (mut stored, mut other) = (vec![0u8; 5 * bytes + 1], vec![0xAAu8; 5 * bytes + 1]);
    for (i, row) in rows.iter().enumerate() {
        let at = 1 + i * bytes..1 + (i + 1) * bytes;
        format.write(row, &mut stored[at.clone()]);
        format.write(row, &mut other[at]);
    }
    require(stored[1..] == other[1..], || format!("a stored row of {dim} holds what lay there before"))?;
    let mut all = vec![0.0; 5 * dim];
    format.read(&stored[1..], dim, &mut all);
    for (i, row) in rows.iter().enumerate() {
        let alone = round_trip(format, row);
        require(all[i * dim..(i + 1) * dim] == alone[..], || {
            format!("row {i} of {dim} numbers reads otherwise among others than alone")
        })?;
    }
    Ok(())
}

/// Zeros stay zero; nothing finite becomes infinite or not a number.
fn special(format: &dyn KvFormat, dim: usize) -> Verdict {
    let zeros = round_trip(format, &vec![0.0; dim]);
    require(zeros.iter().all(|v| *v == 0.0), || format!("a row of {dim} zeros does not come back as zeros"))?;
    for large in [6e4f32, 1e30, 1e-30] {
        let mut row = vec![0.0; dim];
        row[dim / 2] = -large;
        let back = round_trip(format, &row);
        require(back.iter().all(|v| v.is_finite()), || format!("a row with {large} comes back with infinite numbers"))?;
    }
    Ok(())
}

fn round_trip(format: &dyn KvFormat, row: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; format.row_bytes(row.len())];
    format.write(row, &mut bytes);
    let mut out = vec![f32::NAN; row.len()];
    format.read(&bytes, row.len(), &mut out);
    out
}
