//! Matrices that the model has as one and the file as several: rows of one behind the other, read where they lie.

use crate::files::StoredTensor;
use crate::files::packed::Packed;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
struct Joined([StoredTensor; 2]);

/// The matrix `name` of the rows of both parts.
pub(super) fn joined(name: &str, parts: [StoredTensor; 2]) -> Result<StoredTensor, String> {
    let [(rows, width), (more, other)] = parts.each_ref().map(|part| (part.rows(), part.row_len()));
    if width != other {
        return Err(format!("the parts of `{name}` have rows of {width} and of {other}"));
    }
    Ok(StoredTensor::packed(name, "joined", &[rows + more, width], Arc::new(Joined(parts))))
}

impl Packed for Joined {
    fn parts(&self) -> &[StoredTensor] {
        &self.0
    }

    fn rows(&self) -> usize {
        self.0.iter().map(StoredTensor::rows).sum()
    }

    fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        let width = self.0[0].row_len().max(1);
        let (mut first, mut out) = (0, out);
        for part in &self.0 {
            let end = first + part.rows();
            let own = rows.start.clamp(first, end)..rows.end.clamp(first, end);
            let (now, later) = std::mem::take(&mut out).split_at_mut(own.len() * width);
            // Rows of a part, and a buffer of their size: nothing can be wrong with them.
            let _ = part.dequant_rows(own.start - first..own.end - first, now);
            (first, out) = (end, later);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_both_parts() {
        let part = |from: u8, rows: usize| {
            let values: Vec<f32> = (0..rows * 2).map(|i| f32::from(from) + i as f32).collect();
            StoredTensor::from_f32("p", &[rows, 2], &values).unwrap()
        };
        let both = joined("w", [part(0, 2), part(10, 3)]).unwrap();
        assert_eq!(both.to_f32(), [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
        let mut out = [0.0; 4];
        both.dequant_rows(1..3, &mut out).unwrap();
        assert_eq!(out, [2.0, 3.0, 10.0, 11.0]);
        both.dequant_rows(3..5, &mut out).unwrap();
        assert_eq!(out, [12.0, 13.0, 14.0, 15.0]);
    }
}
