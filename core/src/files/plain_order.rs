//! Values in the row order of Hugging Face checkpoints, whatever the order they are stored in.

use super::checkpoint::Checkpoint;
use super::error::FileError;
use super::tensor::StoredTensor;

impl Checkpoint {
    /// All values of `tensor`, which is one of this checkpoint's, with the rows in the order of Hugging Face checkpoints:
    /// of a head stored as neighbouring pairs, the halves one after the other.
    ///
    /// # Errors
    /// No configuration to say how many heads there are.
    pub fn values_in_plain_order(&self, tensor: &StoredTensor) -> Result<Vec<f32>, FileError> {
        let values = tensor.to_f32();
        let heads_key = match tensor.name() {
            name if name.contains(".q_proj.") => "num_attention_heads",
            name if name.contains(".k_proj.") => "num_key_value_heads",
            _ => return Ok(values),
        };
        if !self.storage().rope_interleaved_qk {
            return Ok(values);
        }
        let heads = self.config()?.positive(heads_key)?;
        // A bias is one row, its elements are in the order of the matrix's rows.
        let (rows, len) = match tensor.shape() {
            [elems] => (*elems, 1),
            _ => (tensor.rows(), tensor.row_len()),
        };
        let head_rows = rows / heads;
        if !rows.is_multiple_of(heads) || !head_rows.is_multiple_of(2) {
            return Ok(values);
        }
        let mut out = Vec::with_capacity(values.len());
        for row in 0..rows {
            let (head, within) = (row / head_rows, row % head_rows);
            let stored = head * head_rows + within % (head_rows / 2) * 2 + within / (head_rows / 2);
            out.extend_from_slice(&values[stored * len..(stored + 1) * len]);
        }
        Ok(out)
    }
}
