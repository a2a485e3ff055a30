//! Model files. (First interface; containers and formats follow.)

use std::ops::Range;

/// Why a model file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A row outside the tensor.
    #[error("tensor `{name}` has {rows} rows, asked for {asked}")]
    Rows {
        /// The tensor.
        name: String,
        /// Rows it has.
        rows: usize,
        /// Row asked for.
        asked: usize,
    },
}

/// A tensor as stored.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    name: String,
    shape: Vec<usize>,
}

impl StoredTensor {
    /// Its name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Rows: the product of all dimensions but the last (1 for a vector).
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Elements of a row: the last dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows `range` as f32 into `out`.
    ///
    /// # Errors
    /// A row outside the tensor.
    pub fn dequant_rows(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), FileError> {
        let _ = out;
        Err(FileError::Rows { name: self.name.clone(), rows: self.rows(), asked: range.end })
    }
}
