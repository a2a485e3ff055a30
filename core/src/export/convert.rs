//! One matrix on its way into a stored form, in pieces, with its error.

use super::encode::{Encoder, Part};
use super::error::ExportError;
use super::rows::Rows;
use super::write::{PIECE_ELEMS, Sink, Slot, Work};
use std::sync::OnceLock;

/// A matrix being encoded.
pub(super) struct Convert {
    rows: Rows,
    encoder: Box<dyn Encoder>,
    /// Bytes of a step of rows of each part, and where the part lies.
    parts: Vec<(usize, Slot)>,
    piece_rows: usize,
    /// Squares of errors and of values, by piece.
    sums: Vec<OnceLock<(f64, f64)>>,
}

impl Convert {
    /// The work of encoding `rows` into `parts`, which lie at `slots`.
    pub(super) fn new(rows: Rows, encoder: Box<dyn Encoder>, parts: &[Part], slots: &[Slot]) -> Self {
        let step = encoder.row_step();
        let piece_rows = (PIECE_ELEMS / rows.width.max(1)).max(1).next_multiple_of(step);
        let pieces = rows.count().div_ceil(piece_rows);
        let parts = parts.iter().zip(slots).map(|(part, slot)| (part.step_bytes, *slot)).collect();
        Self { rows, encoder, parts, piece_rows, sums: (0..pieces).map(|_| OnceLock::new()).collect() }
    }

    /// Root mean square error over root mean square value, once all is written.
    pub(super) fn relative_error(&self) -> f64 {
        let sums = self.sums.iter().filter_map(OnceLock::get);
        let (error, square) = sums.fold((0.0, 0.0), |(e, s), (error, square)| (e + error, s + square));
        if square > 0.0 { (error / square).sqrt() } else { 0.0 }
    }
}

impl Work for Convert {
    fn pieces(&self) -> usize {
        self.sums.len()
    }

    fn piece_bytes(&self, piece: usize) -> u64 {
        let first = piece * self.piece_rows;
        let rows = self.piece_rows.min(self.rows.count() - first);
        (rows * self.rows.width * size_of::<f32>()) as u64
    }

    fn run(&self, piece: usize, sink: &Sink) -> Result<(), ExportError> {
        let first = piece * self.piece_rows;
        let rows = self.piece_rows.min(self.rows.count() - first);
        let mut values = vec![0f32; rows * self.rows.width];
        self.rows.read(first..first + rows, &mut values)?;
        if self.rows.add != 0.0 {
            values.iter_mut().for_each(|value| *value += self.rows.add);
        }
        let mut coded = values.clone();
        let mut out: Vec<Vec<u8>> = self.parts.iter().map(|_| Vec::new()).collect();
        self.encoder.encode(self.rows.width, &mut coded, &mut out);
        let mut sums = (0f64, 0f64);
        for (value, coded) in values.iter().zip(&coded) {
            sums.0 += f64::from(value - coded).powi(2);
            sums.1 += f64::from(*value).powi(2);
        }
        let _ = self.sums[piece].set(sums);
        let step = first / self.encoder.row_step();
        for ((step_bytes, slot), bytes) in self.parts.iter().zip(&out) {
            sink.put(*slot, (step * step_bytes) as u64, bytes)?;
        }
        Ok(())
    }
}
