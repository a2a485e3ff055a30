//! Products with weights: one or several maps of one input, with what stands before (a norm) and behind them (an activation of gate and
//! up, a sum with the residual stream) where strategies fuse those.
//!
//! Few activations pass once through the weights as stored (`cu/gemv.cuh`); many go to the library, packed weights by way of a
//! ring of bf16.

use super::super::blas::{Number, Product};
use super::super::error::CudaError;
use super::super::launch::{Shape, args};
use super::super::memory::Buffer;
use super::super::weights::{Form, Matrix};
use super::elementwise::GatedAct;
use super::gemv::{GemvArgs, MOST_COLUMNS, Spec};
use super::{Cx, KernelId, Place, Unit};
use std::sync::Arc;

/// Maps that are one matrix.
pub struct Group {
    /// Their rows, one below the other.
    pub matrix: Arc<Matrix>,
    /// Where the rows go; with a gate where act(gate) * up goes.
    pub to: Place,
    /// f32, one a row, if any map has one.
    pub bias: Option<Buffer>,
    /// Kernels for up to so many activations, ascending.
    pub few: Vec<(usize, Spec, KernelId)>,
    /// Kernel that unpacks the rows, for packed forms.
    pub unpack: Option<KernelId>,
    /// Kernel that adds the bias after a library product.
    pub add_bias: Option<KernelId>,
}

/// A norm before the maps.
pub struct Before {
    /// f32.
    pub weight: Arc<Buffer>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// The norm by itself, into the input of library products.
    pub unit: super::norm::RmsNorm,
}

/// An activation of gate and up behind the maps.
pub struct Gate {
    /// Number of the activation.
    pub kind: i32,
    /// Both, side by side, as library products leave them.
    pub both: Place,
    /// The activation by itself.
    pub unit: GatedAct,
}

/// The maps.
pub struct Project {
    /// For times.
    pub label: &'static str,
    /// What is read.
    pub from: Place,
    /// Input of library products, if it is not `from` itself, with the kernel that converts to it.
    pub input: Option<(Place, Option<KernelId>)>,
    /// A norm before.
    pub before: Option<Before>,
    /// The matrices.
    pub groups: Vec<Group>,
    /// An activation of gate and up behind.
    pub gate: Option<Gate>,
    /// Added to the product: the residual stream, and the factor on the product.
    pub residual: Option<(Place, f32)>,
    /// Where packed weights are unpacked to.
    pub ring: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

impl Project {
    fn rows(&self, cx: &Cx<'_>) -> usize {
        cx.rows_of(&self.groups[0].to)
    }

    fn few(&self, cx: &Cx<'_>, group: &Group, columns: usize) -> Result<bool, CudaError> {
        let Some((_, spec, kernel)) = group.few.iter().find(|(most, ..)| *most >= columns) else { return Ok(false) };
        let Matrix { rows, k, row_bytes, .. } = &*group.matrix;
        let gated = self.gate.is_some();
        let rows = if gated { rows / 2 } else { *rows };
        let grid = spec.grid(rows, self.multiprocessors);
        let (residual, scale) = self.residual.unwrap_or((Place::default(), 1.0));
        let args = GemvArgs {
            w: group.matrix.ptr(),
            x: self.from.ptr,
            norm: self.before.as_ref().map_or(0, |before| before.weight.ptr()),
            bias: group.bias.as_ref().map_or(0, Buffer::ptr),
            residual: residual.ptr,
            out: group.to.ptr,
            residual_stride: residual.stride as u64,
            out_stride: group.to.stride as u64,
            x_stride: self.from.stride as u64,
            rows: rows as u32,
            row_bytes: *row_bytes as u32,
            k: *k as u32,
            chunks: group.matrix.chunks() as u32,
            columns: columns as u32,
            x_f32: i32::from(self.from.f32),
            out_f32: i32::from(group.to.f32),
            gate: self.gate.as_ref().map_or(-1, |gate| gate.kind),
            eps: self.before.as_ref().map_or(0.0, |before| before.eps),
            scale,
            ..GemvArgs::default()
        };
        let shape = Shape::line(grid, spec.block()).with_shared(spec.shared(rows, *k, gated, self.from.f32, grid));
        // SAFETY: arguments of the kernels of `cu/gemv.cuh`; sizes are those of the weight and the values.
        unsafe { cx.launch(*kernel, shape, args![args]) }?;
        Ok(true)
    }

    fn number(form: Form) -> Number {
        if form == Form::F16 { Number::F16 } else { Number::Bf16 }
    }

    fn product(&self, group: &Group, rows: usize) -> Product {
        let matrix = &*group.matrix;
        let x = self.input.as_ref().map_or(self.from, |(place, _)| *place);
        let to = self.gate.as_ref().map_or(group.to, |gate| gate.both);
        Product {
            size: (rows, matrix.rows, matrix.k),
            number: Self::number(matrix.form),
            w: if matrix.form.plain() { (matrix.ptr(), matrix.row_bytes / 2) } else { (self.ring, matrix.k) },
            x: (x.ptr, x.stride),
            y: (to.ptr, to.stride, if to.f32 { Number::F32 } else { Number::Bf16 }),
            c: self.residual.map(|(place, _)| (place.ptr, place.stride)),
            alpha: self.residual.map_or(1.0, |(_, scale)| scale),
        }
    }

    fn prepare_input(&self, cx: &Cx<'_>, rows: usize) -> Result<(), CudaError> {
        if let Some(before) = &self.before {
            before.unit.enqueue(cx)?;
        }
        let Some((place, Some(kernel))) = &self.input else { return Ok(()) };
        let from = self.before.as_ref().map_or(self.from, |before| before.unit.to);
        let (sx, so, width) = (from.stride as u32, place.stride as u32, from.width as u32);
        let (what, kind, number, weight, count) = (3i32, 0i32, 0.0f32, 0u64, 0u32);
        let shape = Shape::plane(width.div_ceil(256), rows as u32, 256);
        // SAFETY: arguments of `map_*`; `place` has room for as many rows as a step has.
        unsafe {
            cx.launch(*kernel, shape, args![from.ptr, sx, place.ptr, so, width, what, kind, number, weight, count])
        }
    }

    fn unpack(&self, cx: &Cx<'_>, group: &Group) -> Result<(), CudaError> {
        let Some(kernel) = group.unpack else { return Ok(()) };
        let Matrix { rows, k, row_bytes, .. } = &*group.matrix;
        let chunks = group.matrix.chunks();
        let (row_bytes, k, blocks) = (*row_bytes as u32, *k as u32, (rows * chunks).div_ceil(256) as u32);
        let (chunks, rows) = (chunks as u32, *rows as u32);
        // SAFETY: arguments of `unpack_*`; the ring has room for the largest packed matrix.
        unsafe {
            cx.launch(
                kernel,
                Shape::line(blocks, 256),
                args![group.matrix.ptr(), row_bytes, k, chunks, rows, self.ring],
            )
        }
    }
}

impl Unit for Project {
    fn name(&self) -> &'static str {
        self.label
    }

    fn enqueue(&self, cx: &Cx<'_>) -> Result<(), CudaError> {
        let rows = self.rows(cx);
        if rows == 0 {
            return Ok(());
        }
        let all_few = rows <= MOST_COLUMNS && self.groups.iter().all(|g| g.few.iter().any(|(most, ..)| *most >= rows));
        if all_few {
            return self.groups.iter().try_for_each(|group| self.few(cx, group, rows).map(|_| ()));
        }
        self.prepare_input(cx, rows)?;
        for group in &self.groups {
            self.unpack(cx, group)?;
            let product = self.product(group, rows);
            cx.blas.run(&product)?;
            if let (Some(bias), Some(kernel)) = (&group.bias, group.add_bias) {
                let (ptr, stride, _) = product.y;
                let (stride, width) = (stride as u32, group.matrix.rows as u32);
                let shape = Shape::plane(width.div_ceil(256), rows as u32, 256);
                // SAFETY: arguments of `bias_*`.
                unsafe { cx.launch(kernel, shape, args![ptr, stride, bias.ptr(), width]) }?;
            }
        }
        self.gate.as_ref().map_or(Ok(()), |gate| gate.unit.enqueue(cx))
    }

    fn products(&self, rows: usize) -> Vec<Product> {
        let rows = if self.groups[0].to.rows { rows.min(64) } else { rows };
        self.groups.iter().map(|group| self.product(group, rows)).collect()
    }
}
