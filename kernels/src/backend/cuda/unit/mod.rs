//! What a plan is made of: an op, or neighbours that are done together, ready to be put on a stream.
//!
//! A unit holds what does not change from step to step; what changes is in the step's [`Tables`] on the device and in the counts
//! of [`Cx`], which are constant for a captured step. One file a family of units.

pub mod attention;
pub mod elementwise;
pub mod embed;
pub mod gemv;
pub mod moe;
pub mod norm;
pub mod project;

use super::blas::Blas;
use super::compile::Function;
use super::error::CudaError;
use super::launch::{Queue, Shape};
use std::ffi::c_void;

/// The step's tables on the device, as `cu/crit.cuh` has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Tables {
    /// Token ids, `[T]`.
    pub tokens: u64,
    /// Positions, `[T]`.
    pub positions: u64,
    /// Sequence of each token, -1 for padding, `[T]`.
    pub seq_of: u64,
    /// Rows whose logits are wanted, `[R]`.
    pub rows: u64,
    /// First token of each sequence, `[S]`.
    pub seq_first: u64,
    /// Its tokens in the step, `[S]`.
    pub seq_tokens: u64,
    /// Positions before the step, `[S]`.
    pub seq_past: u64,
    /// Tokens it is known to have, `[S]`.
    pub seq_length: u64,
    /// Cache blocks, `[S][block_stride]`.
    pub blocks: u64,
    /// Blocks from sequence to sequence.
    pub block_stride: u32,
}

/// Where a value lies: `[rows][stride]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// First element of the first row.
    pub ptr: u64,
    /// Elements from row to row.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
    /// Whether elements are f32; bf16 otherwise.
    pub f32: bool,
    /// Whether it has a row for each wanted row instead of each token.
    pub rows: bool,
}

impl Place {
    /// `f32` or `bf16`, as in kernel names.
    pub const fn number(&self) -> &'static str {
        if self.f32 { "f32" } else { "bf16" }
    }

    /// Whether rows begin where 16 bytes can be taken at once. What lies behind a row's last element, if its width is no
    /// multiple of 8, is zero and the row's own.
    pub const fn aligned(&self) -> bool {
        let size = if self.f32 { 4 } else { 2 };
        self.ptr.is_multiple_of(16) && (self.stride * size).is_multiple_of(16)
    }

    /// Whether rows are whole runs of 8 elements, too.
    pub const fn wide(&self) -> bool {
        self.aligned() && self.width.is_multiple_of(8)
    }
}

/// A kernel by its place in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId(pub usize);

/// What units see when they are put on the stream.
pub struct Cx<'a> {
    /// The stream.
    pub queue: Queue,
    /// Kernels by [`KernelId`].
    pub functions: &'a [Function],
    /// Library products.
    pub blas: &'a Blas,
    /// The step's tables.
    pub tables: Tables,
    /// Tokens, padding included.
    pub tokens: usize,
    /// Rows whose logits are wanted, padding included.
    pub wanted: usize,
    /// Whether every token is its sequence's only one.
    pub one_each: bool,
    /// Tiles of 64 tokens of a sequence: where their table is, and how many.
    pub tiles: (u64, usize),
}

impl Cx<'_> {
    /// Rows of a value in this step.
    pub fn rows_of(&self, place: &Place) -> usize {
        if place.rows { self.wanted } else { self.tokens }
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// As [`Queue::launch`].
    pub(super) unsafe fn launch(
        &self,
        kernel: KernelId,
        shape: Shape,
        args: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch(self.functions[kernel.0], shape, args) }
    }
}

/// An op, or several done together.
pub trait Unit: Send {
    /// What it does, for times.
    fn name(&self) -> &'static str;

    /// Puts it on the stream.
    ///
    /// # Errors
    /// A driver or library call failed.
    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError>;

    /// Library products it will ask for at steps of many tokens, for tuning: `(rows, columns, elements)` and what else describes them.
    fn products(&self, rows: usize) -> Vec<super::blas::Product> {
        let _ = rows;
        Vec::new()
    }
}
