//! Rows of a matrix of the result, wherever they lie in the source.

use super::error::ExportError;
use crate::files::StoredTensor;
use std::ops::Range;

/// Where the rows of a matrix come from: as many of each of several tensors, perhaps in another order.
pub(super) struct Rows {
    /// Tensors with the first row of theirs that counts.
    pub(super) runs: Vec<(StoredTensor, usize)>,
    /// Rows of each run.
    pub(super) rows_each: usize,
    /// Elements of a row.
    pub(super) width: usize,
    /// Rows of a head, within which halves are interleaved for rotating neighbouring pairs.
    pub(super) head_rows: Option<usize>,
    /// Added to every value.
    pub(super) add: f32,
}

impl Rows {
    /// Rows in all.
    pub(super) fn count(&self) -> usize {
        self.runs.len() * self.rows_each
    }

    /// Reads rows `range` as f32.
    pub(super) fn read(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), ExportError> {
        let mut at = range.start;
        let mut rest = out;
        while at < range.end {
            let (run, within) = (at / self.rows_each, at % self.rows_each);
            let (tensor, first) = &self.runs[run];
            let count = match self.head_rows {
                Some(_) => 1,
                None => (self.rows_each - within).min(range.end - at),
            };
            let source = first + self.head_rows.map_or(within, |rows| halves_row(within, rows));
            let (now, later) = rest.split_at_mut(count * self.width);
            tensor.dequant_rows(source..source + count, now)?;
            rest = later;
            at += count;
        }
        Ok(())
    }
}

/// The row, in the order of two halves, of the row `row` in the order of neighbouring pairs.
pub(super) fn halves_row(row: usize, head_rows: usize) -> usize {
    let (head, within) = (row / head_rows, row % head_rows);
    head * head_rows + within % 2 * (head_rows / 2) + within / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cross_tensors_and_heads_are_interleaved() {
        let tensor = |from: usize| {
            let values: Vec<f32> = (from..from + 8).map(|i| i as f32).collect();
            StoredTensor::from_f32("w", &[4, 2], &values).unwrap()
        };
        let rows = |head_rows| Rows {
            runs: vec![(tensor(0), 0), (tensor(8), 0)],
            rows_each: 4,
            width: 2,
            head_rows,
            add: 0.0,
        };
        let mut out = [0.0; 6];
        rows(None).read(3..6, &mut out).unwrap();
        assert_eq!(out, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        rows(Some(4)).read(0..3, &mut out).unwrap();
        assert_eq!(out, [0.0, 1.0, 4.0, 5.0, 2.0, 3.0], "rows 0, 2, 1, 3 of the head");
    }
}
