//! Sums, activations, factors, caps, rows.

use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::memory::Buffer;
use super::{Cx, KernelId, Place, Unit};
use std::sync::Arc;

const BLOCK: u32 = 256;

fn plane(place: &Place, rows: usize, each: u32) -> Shape {
    Shape::plane((place.width as u32).div_ceil(BLOCK * each), rows as u32, BLOCK)
}

/// to = a + b * scale.
pub struct Add {
    /// For the formats of the three.
    pub kernel: KernelId,
    /// One.
    pub a: Place,
    /// The other.
    pub b: Place,
    /// Where it goes.
    pub to: Place,
    /// On b.
    pub scale: f32,
}

impl Unit for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { a, b, to, scale, .. } = self;
        let shape = plane(to, cx.rows_of(to), 1);
        let (sa, sb, so, width) = (a.stride as u32, b.stride as u32, to.stride as u32, to.width as u32);
        // SAFETY: arguments of `add_*`; all three have the same rows and width.
        unsafe { cx.launch(self.kernel, shape, args![a.ptr, sa, b.ptr, sb, to.ptr, so, width, *scale]) }
    }
}

/// to = act(gate) * up, bounded.
pub struct GatedAct {
    /// The wide one if [`GatedAct::wide`].
    pub kernel: KernelId,
    /// Gate.
    pub gate: Place,
    /// Up.
    pub up: Place,
    /// Where it goes.
    pub to: Place,
    /// Number of the activation.
    pub kind: i32,
    /// Bound; infinite if none.
    pub limit: f32,
    /// 8 elements at a time.
    pub wide: bool,
}

impl Unit for GatedAct {
    fn name(&self) -> &'static str {
        "gated_act"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { gate, up, to, kind, limit, .. } = self;
        let (sg, su, so, width) = (gate.stride as u32, up.stride as u32, to.stride as u32, to.width as u32);
        let rows = cx.rows_of(to);
        // SAFETY: arguments of `gated_act` and `gated_act_wide`; all three have the same rows and width.
        unsafe {
            if self.wide {
                return cx.launch(
                    self.kernel,
                    plane(to, rows, 8),
                    args![gate.ptr, sg, up.ptr, su, to.ptr, so, width, *kind],
                );
            }
            cx.launch(
                self.kernel,
                plane(to, rows, 1),
                args![gate.ptr, sg, up.ptr, su, to.ptr, so, width, *kind, *limit],
            )
        }
    }
}

/// An element by itself: an activation (0), a factor (1), a cap (2), or only another format (3).
pub struct Map {
    /// For both formats.
    pub kernel: KernelId,
    /// The op's name.
    pub op: &'static str,
    /// What is read.
    pub from: Place,
    /// Where it goes.
    pub to: Place,
    /// Which of these.
    pub what: i32,
    /// Number of the activation.
    pub kind: i32,
    /// Factor or cap.
    pub number: f32,
    /// Factors, one or one an element.
    pub weight: Option<(Arc<Buffer>, usize)>,
}

impl Unit for Map {
    fn name(&self) -> &'static str {
        self.op
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { from, to, what, kind, number, .. } = self;
        let (weight, count) = self.weight.as_ref().map_or((0, 0), |(weight, count)| (weight.ptr(), *count as u32));
        let (sx, so, width) = (from.stride as u32, to.stride as u32, to.width as u32);
        let shape = plane(to, cx.rows_of(to), 1);
        // SAFETY: arguments of `map_*`; both have the same rows and width.
        unsafe {
            cx.launch(self.kernel, shape, args![from.ptr, sx, to.ptr, so, width, *what, *kind, *number, weight, count])
        }
    }
}

/// The rows whose logits are wanted.
pub struct SelectRows {
    /// For the format.
    pub kernel: KernelId,
    /// A row a token.
    pub from: Place,
    /// A row a wanted row.
    pub to: Place,
}

impl Unit for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { from, to, .. } = self;
        let (sx, so, width) = (from.stride as u32, to.stride as u32, to.width as u32);
        let shape = Shape::line(cx.wanted as u32, BLOCK);
        // SAFETY: arguments of `select_rows_*`; wanted rows are rows of `from`, which the executor checked.
        unsafe { cx.launch(self.kernel, shape, args![cx.tables, from.ptr, sx, to.ptr, so, width]) }
    }
}
