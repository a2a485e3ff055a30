//! Packing: a float tensor to Q8_0 blocks, rows shared among threads. Done once, at load.

use crit_core::files::{FileError, StoredTensor};
use half::f16;
use std::ops::Range;

/// Elements of a block.
pub(super) const BLOCK: usize = 32;
/// Bytes of a block: an f16 scale and the codes.
pub(super) const BLOCK_BYTES: usize = 2 + BLOCK;

/// The tensor's rows as blocks, one row after the other.
pub(super) fn pack(tensor: &StoredTensor) -> Result<Vec<u8>, FileError> {
    let (rows, len) = (tensor.rows(), tensor.row_len());
    let row_bytes = len / BLOCK * BLOCK_BYTES;
    let mut out = vec![0u8; rows * row_bytes];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = rows.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = out
            .chunks_mut(share * row_bytes)
            .enumerate()
            .map(|(i, part)| {
                let first = i * share;
                scope.spawn(move || pack_rows(tensor, first..first + part.len() / row_bytes, part))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("packing does not panic"))
    })?;
    Ok(out)
}

fn pack_rows(tensor: &StoredTensor, rows: Range<usize>, out: &mut [u8]) -> Result<(), FileError> {
    let mut row = vec![0.0f32; tensor.row_len()];
    let row_bytes = row.len() / BLOCK * BLOCK_BYTES;
    for (i, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
        tensor.dequant_rows(i..i + 1, &mut row)?;
        for (values, block) in row.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            pack_block(values, block);
        }
    }
    Ok(())
}

fn pack_block(values: &[f32], out: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    // The codes are made with the scale as it is stored, so that its rounding is not a second error.
    let scale = f16::from_f32(largest / 127.0);
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let (head, codes) = out.split_at_mut(2);
    head.copy_from_slice(&scale.to_le_bytes());
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
}
