//! Embedding: rows of a table by token.

use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::weights::{Form, Matrix};
use super::{Cx, KernelId, Place, Unit};
use std::sync::Arc;

/// Rows of a table, times a factor.
pub struct Embed {
    /// Of the table's form.
    pub kernel: KernelId,
    /// The table.
    pub table: Arc<Matrix>,
    /// f32.
    pub out: Place,
    /// On every element.
    pub scale: f32,
}

impl Unit for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { table, out, scale, .. } = self;
        let (stride, width, last) = (out.stride as u32, table.k as u32, table.rows as u32 - 1);
        let shape = Shape::line(cx.tokens as u32, 256);
        // SAFETY: arguments of `embed_*` in `cu/elementwise.cu` and `cu/unpack.cu`; sizes are those of the table and the value.
        unsafe {
            if matches!(table.form, Form::Bf16 | Form::F16) {
                let step = (table.row_bytes / 2) as u32;
                cx.launch(self.kernel, shape, args![cx.tables, table.ptr(), step, out.ptr, stride, width, last, *scale])
            } else {
                let (row_bytes, chunks) = (table.row_bytes as u32, table.chunks() as u32);
                cx.launch(
                    self.kernel,
                    shape,
                    args![cx.tables, table.ptr(), row_bytes, width, chunks, last, out.ptr, stride, *scale],
                )
            }
        }
    }
}
