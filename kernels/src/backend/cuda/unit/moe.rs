//! Routed experts: the choice, and the products of the experts chosen.
//!
//! Every choice of a token is a product of its own through its expert's weights, the expert named on the device.

use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::memory::Buffer;
use super::super::weights::Matrix;
use super::gemv::{GemvArgs, Spec};
use super::{Cx, KernelId, Place, Unit};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RouteArgs {
    logits: u64,
    stride: u64,
    ids: u64,
    ids_stride: u64,
    weights: u64,
    weights_stride: u64,
    bias: u64,
    factors: u64,
    experts: u32,
    top_k: u32,
    score: i32,
    normalised: i32,
    factor: f32,
}

/// The choice.
pub struct Route {
    /// `moe_route`.
    pub kernel: KernelId,
    /// f32 logits.
    pub logits: Place,
    /// f32 numbers of experts.
    pub ids: Place,
    /// f32 weights.
    pub weights: Place,
    /// Of the choice.
    pub bias: Option<Buffer>,
    /// Of each expert.
    pub factors: Option<Buffer>,
    /// Experts a token gets.
    pub top_k: usize,
    /// 0 softmax, 1 sigmoid, 2 root of softplus.
    pub score: i32,
    /// Whether weights are divided by their sum.
    pub normalised: bool,
    /// On all weights.
    pub factor: f32,
}

impl Unit for Route {
    fn name(&self) -> &'static str {
        "moe_route"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let a = RouteArgs {
            logits: self.logits.ptr,
            stride: self.logits.stride as u64,
            ids: self.ids.ptr,
            ids_stride: self.ids.stride as u64,
            weights: self.weights.ptr,
            weights_stride: self.weights.stride as u64,
            bias: self.bias.as_ref().map_or(0, Buffer::ptr),
            factors: self.factors.as_ref().map_or(0, Buffer::ptr),
            experts: self.logits.width as u32,
            top_k: self.top_k as u32,
            score: self.score,
            normalised: i32::from(self.normalised),
            factor: self.factor,
        };
        let tokens = cx.tokens as u32;
        let shape = Shape::line(tokens.div_ceil(4), 128).with_shared(4 * 2 * 4 * self.logits.width as u32);
        // SAFETY: arguments of `moe_route`.
        unsafe { cx.launch(self.kernel, shape, args![a, tokens]) }
    }
}

/// The experts' products.
pub struct Experts {
    /// Gate and up of all experts, expert by expert gate rows then up rows.
    pub gate_up: (Matrix, Spec, KernelId),
    /// Down of all experts.
    pub down: (Matrix, Spec, KernelId),
    /// `moe_join`.
    pub join: KernelId,
    /// What experts read.
    pub from: Place,
    /// Experts chosen.
    pub ids: Place,
    /// Their weights.
    pub weights: Place,
    /// Where the sum goes.
    pub to: Place,
    /// Experts there are.
    pub experts: usize,
    /// Experts a token gets.
    pub top_k: usize,
    /// Number of the activation.
    pub kind: i32,
    /// bf16 `[T * top_k][intermediate]`.
    pub hidden: Place,
    /// f32 `[T * top_k][hidden]`.
    pub given: Place,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

impl Experts {
    fn products(
        &self,
        cx: &Cx<'_>,
        which: &(Matrix, Spec, KernelId),
        from: &Place,
        to: &Place,
        per_x: usize,
    ) -> Result<(), CudaError> {
        let (matrix, spec, kernel) = which;
        let gated = per_x > 0;
        let rows = matrix.rows / self.experts / if gated { 2 } else { 1 };
        let choices = cx.tokens * self.top_k;
        // Few choices share the device between them; many fill it anyway.
        let grid = (self.multiprocessors * 4 / choices.max(1) as u32)
            .clamp(1, rows.max(1) as u32)
            .max(spec.grid(rows, 1).min(rows as u32));
        let a = GemvArgs {
            w: matrix.ptr(),
            x: from.ptr,
            out: to.ptr,
            out_stride: to.stride as u64,
            x_stride: from.stride as u64,
            rows: rows as u32,
            row_bytes: matrix.row_bytes as u32,
            k: matrix.k as u32,
            chunks: matrix.chunks() as u32,
            columns: 1,
            x_f32: i32::from(from.f32),
            out_f32: i32::from(to.f32),
            gate: if gated { self.kind } else { -1 },
            scale: 1.0,
            chosen: self.ids.ptr,
            expert_bytes: (matrix.rows / self.experts * matrix.row_bytes) as u64,
            experts: self.experts as u32,
            per_x: per_x.max(1) as u32,
            top_k: self.top_k as u32,
            chosen_stride: self.ids.stride as u32,
            ..GemvArgs::default()
        };
        let shared = spec.shared(rows, matrix.k, gated, from.f32, grid);
        // The second dimension of a grid ends at 65535; choices of a step stay below.
        let shape = Shape::plane(grid, choices as u32, 256).with_shared(shared);
        // SAFETY: arguments of `gemv_plain`; `ids` has top_k numbers a token.
        unsafe { cx.launch(*kernel, shape, args![a]) }
    }
}

impl Unit for Experts {
    fn name(&self) -> &'static str {
        "moe_experts"
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        self.products(cx, &self.gate_up, &self.from, &self.hidden, self.top_k)?;
        self.products(cx, &self.down, &self.hidden, &self.given, 0)?;
        let (gs, ws, os) = (self.given.stride as u64, self.weights.stride as u64, self.to.stride as u64);
        let (top_k, width, f32) = (self.top_k as u32, self.to.width as u32, i32::from(self.to.f32));
        let shape = Shape::plane(width.div_ceil(256), cx.tokens as u32, 256);
        let (given, weights, to) = (self.given.ptr, self.weights.ptr, self.to.ptr);
        // SAFETY: arguments of `moe_join`.
        unsafe { cx.launch(self.join, shape, args![given, gs, weights, ws, top_k, to, os, width, f32]) }
    }
}
