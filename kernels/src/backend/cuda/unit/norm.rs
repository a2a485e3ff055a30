//! Root-mean-square norms over rows or groups of them.

use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::memory::Buffer;
use super::{Cx, KernelId, Place, Unit};
use std::sync::Arc;

/// A norm.
pub struct RmsNorm {
    /// For the formats of `from` and `to`; the wide one if [`RmsNorm::wide`].
    pub kernel: KernelId,
    /// What is normed.
    pub from: Place,
    /// Where it goes.
    pub to: Place,
    /// Weight, if any, as f32.
    pub weight: Option<Arc<Buffer>>,
    /// Elements a norm is over.
    pub group: usize,
    /// Groups after which the weight repeats.
    pub period: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whole rows, 16 bytes at a time.
    pub wide: bool,
}

/// Longest row the wide kernel takes.
pub const WIDEST: usize = 8192;

impl RmsNorm {
    /// Whether the wide kernel does for these.
    pub fn is_wide(from: &Place, to: &Place, weighted: bool, group: usize) -> bool {
        from.f32 && !to.f32 && weighted && group == from.width && group <= WIDEST && from.wide() && to.wide()
    }
}

impl Unit for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let Self { from, to, eps, .. } = self;
        let rows = cx.rows_of(to) as u32;
        let weight = self.weight.as_ref().map_or(0, |weight| weight.ptr());
        let (xs, ys, group) = (from.stride as u32, to.stride as u32, self.group as u32);
        // SAFETY: arguments of `rms_norm_*` in `cu/elementwise.cu`; both values have `rows` rows.
        unsafe {
            if self.wide {
                let shape = Shape::line(rows, 256);
                return cx.launch(self.kernel, shape, args![from.ptr, xs, to.ptr, ys, weight, group, *eps]);
            }
            let groups = (from.width / self.group) as u32;
            let threads = self.group.div_ceil(4).next_multiple_of(32).clamp(32, 256) as u32;
            let period = self.period.max(1) as u32;
            let shape = Shape::line(rows * groups, threads);
            cx.launch(self.kernel, shape, args![from.ptr, xs, to.ptr, ys, weight, group, groups, period, *eps])
        }
    }
}
