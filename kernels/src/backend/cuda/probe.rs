//! Timed loops behind the limits of a GPU, and products in isolation against them.
//!
//! All times are of graph replays between two events, so that launch costs of the host stay out; buffers are rotated through far
//! more memory than the L2 cache holds.

use super::blas::{Blas, Number, Product};
use super::compile::{Kernels, text};
use super::device::Device;
use super::error::CudaError;
use super::graph::Graph;
use super::launch::{Queue, Shape, args};
use super::memory::{Buffer, Ledger, Pinned, Purpose};
use super::unit::gemv::{GemvArgs, Spec};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// A device with the probe's kernels.
pub struct Probe {
    device: Arc<Device>,
    ledger: Arc<Ledger>,
    kernels: Kernels,
}

impl Probe {
    /// Opens device `ordinal` for measuring.
    ///
    /// # Errors
    /// There is none, or a kernel does not compile.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let device = Device::open(ordinal)?;
        let kernels = Kernels::load(&device, &[("probe.cu".into(), text("probe.cu"))])?;
        Ok(Self { device, ledger: Arc::default(), kernels })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer, CudaError> {
        Buffer::zeroed(&self.device, &self.ledger, Purpose::Workspace, bytes)
    }

    fn queue(&self, early: bool) -> Queue {
        Queue { stream: self.device.stream, early }
    }

    /// Random bf16 values.
    fn random(&self, bytes: u64, seed: u32) -> Result<Buffer, CudaError> {
        let buffer = self.buffer(bytes)?;
        let (ptr, n) = (buffer.ptr(), bytes / 2);
        let blocks = self.device.facts.multiprocessors * 8;
        // SAFETY: arguments of `probe_random`, the buffer has n values.
        unsafe {
            self.queue(false).launch(self.kernels.get("probe_random")?, Shape::line(blocks, 256), args![ptr, n, seed])
        }?;
        self.device.wait()?;
        Ok(buffer)
    }

    /// Seconds of one run of `enqueue`, captured: `repeats` replays.
    fn times_s(&self, repeats: usize, enqueue: impl Fn() -> Result<(), CudaError>) -> Result<Vec<f64>, CudaError> {
        self.device.make_current()?;
        enqueue()?;
        self.device.wait()?;
        let graph = Graph::capture(&self.device, enqueue)?;
        let stream = self.device.stream;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
        let wrong = || CudaError::driver("event");
        // SAFETY: events made and destroyed here, on a live stream.
        unsafe {
            let (a, b) =
                (result::event::create(flags).map_err(wrong())?, result::event::create(flags).map_err(wrong())?);
            let one = || -> Result<f64, CudaError> {
                result::event::record(a, stream).map_err(wrong())?;
                graph.launch()?;
                result::event::record(b, stream).map_err(wrong())?;
                result::event::synchronize(b).map_err(wrong())?;
                Ok(f64::from(result::event::elapsed(a, b).map_err(wrong())?) / 1000.0)
            };
            one()?;
            let times = (0..repeats).map(|_| one()).collect();
            let _ = result::event::destroy(a);
            let _ = result::event::destroy(b);
            times
        }
    }

    /// Bytes a second of reading `bytes`, the best grid of several; one a repeat.
    ///
    /// # Errors
    /// Memory, or the driver.
    pub fn read_bytes_s(&self, bytes: u64, repeats: usize) -> Result<Vec<f64>, CudaError> {
        let (from, sink) = (self.random(bytes, 1)?, self.buffer(256)?);
        let mut best: Vec<f64> = Vec::new();
        for per in [2, 4, 8, 16] {
            let (kernel, grid) = (self.kernels.get("probe_read")?, self.device.facts.multiprocessors * per);
            let (ptr, n, to) = (from.ptr(), bytes / 16, sink.ptr());
            let times = self.times_s(repeats, || {
                // SAFETY: arguments of `probe_read`.
                unsafe { self.queue(false).launch(kernel, Shape::line(grid, 256), args![ptr, n, to]) }
            })?;
            let rates: Vec<f64> = times.iter().map(|time| bytes as f64 / time).collect();
            if median(&rates) > median(&best) {
                best = rates;
            }
        }
        Ok(best)
    }

    /// Bytes a second, read and written together, of copying `bytes`.
    ///
    /// # Errors
    /// Memory, or the driver.
    pub fn copy_bytes_s(&self, bytes: u64, repeats: usize) -> Result<Vec<f64>, CudaError> {
        let (from, to) = (self.random(bytes, 2)?, self.buffer(bytes)?);
        let (kernel, grid) = (self.kernels.get("probe_copy")?, self.device.facts.multiprocessors * 16);
        let (a, b, n) = (from.ptr(), to.ptr(), bytes / 16);
        let times = self.times_s(repeats, || {
            // SAFETY: arguments of `probe_copy`.
            unsafe { self.queue(false).launch(kernel, Shape::line(grid, 256), args![a, b, n]) }
        })?;
        Ok(times.iter().map(|time| 2.0 * bytes as f64 / time).collect())
    }

    /// Seconds a kernel that does nothing takes within a graph of a hundred, set up early or not.
    ///
    /// # Errors
    /// The driver.
    pub fn node_s(&self, early: bool, repeats: usize) -> Result<Vec<f64>, CudaError> {
        let (kernel, grid) = (self.kernels.get("probe_nothing")?, self.device.facts.multiprocessors);
        let early = early && self.device.facts.capability >= (9, 0);
        let times = self.times_s(repeats, || {
            // SAFETY: the kernel takes no arguments.
            (0..100).try_for_each(|_| unsafe { self.queue(early).launch(kernel, Shape::line(grid, 256), &mut []) })
        })?;
        Ok(times.iter().map(|time| time / 100.0).collect())
    }

    /// Bytes a second from pinned memory to the device, and back.
    ///
    /// # Errors
    /// Memory, or the driver.
    pub fn host_bytes_s(&self, bytes: usize, repeats: usize) -> Result<(Vec<f64>, Vec<f64>), CudaError> {
        let (mut host, device) = (Pinned::new(&self.device, bytes)?, self.buffer(bytes as u64)?);
        let rate = |start: std::time::Instant| bytes as f64 / start.elapsed().as_secs_f64();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let start = std::time::Instant::now();
            host.upload(device.ptr(), bytes, self.device.stream)?;
            self.device.wait()?;
            up.push(rate(start));
            let start = std::time::Instant::now();
            host.download(device.ptr(), bytes, self.device.stream)?;
            self.device.wait()?;
            down.push(rate(start));
        }
        Ok((up, down))
    }

    /// Operations a second of a library product of `(m, n, k)` on random values.
    ///
    /// # Errors
    /// Memory, or the library.
    pub fn product_flop_s(
        &self,
        (m, n, k): (usize, usize, usize),
        number: Number,
        repeats: usize,
    ) -> Result<Vec<f64>, CudaError> {
        let blas = Blas::open(&self.device, &self.ledger)?;
        // Any two bf16 values side by side are an f32 value of like size.
        let size = if number == Number::F32 { 4 } else { 2 };
        let (w, x) = (self.random(size * (n * k) as u64, 3)?, self.random(size * (m * k) as u64, 4)?);
        let y = self.buffer(size * (m * n) as u64)?;
        let product = Product {
            size: (m, n, k),
            number,
            w: (w.ptr(), k),
            x: (x.ptr(), k),
            y: (y.ptr(), n, number),
            c: None,
            alpha: 1.0,
        };
        blas.tune(&[product])?;
        let times = self.times_s(repeats, || (0..4).try_for_each(|_| blas.run(&product)))?;
        Ok(times.iter().map(|time| 4.0 * 2.0 * (m * n * k) as f64 / time).collect())
    }

    /// Bytes of weights a second of a product of few activations, in a chain of products each of which reads what the one before wrote.
    ///
    /// # Errors
    /// Memory, the driver, or a kernel that does not compile.
    pub fn gemv_bytes_s(
        &self,
        spec: Spec,
        (rows, k): (usize, usize),
        (gated, normed, early): (bool, bool, bool),
        repeats: usize,
    ) -> Result<Vec<f64>, CudaError> {
        let source = text("gemv.cuh") + &spec.text();
        let kernels = Kernels::load(&self.device, &[(format!("{}.cu", spec.name()), source)])?;
        let row_bytes = spec.form.row_bytes(k);
        let weight_bytes = (rows * row_bytes) as u64;
        let copies = (self.device.facts.l2_bytes * 6 / weight_bytes + 2).min(24);
        let all = self.random(weight_bytes * copies, 5)?;
        let width = k.max(rows);
        let (x, norm) = (self.random(4 * width as u64 * 2, 6)?, self.buffer(4 * k as u64)?);
        let out_rows = if gated { rows / 2 } else { rows };
        let grid = spec.grid(out_rows, self.device.facts.multiprocessors);
        let shared = spec.shared(out_rows, k, gated, normed, grid);
        let kernel = kernels.get_with_shared(&spec.name(), shared)?;
        let base = GemvArgs {
            norm: if normed { norm.ptr() } else { 0 },
            out_stride: width as u64,
            x_stride: width as u64,
            rows: out_rows as u32,
            row_bytes: row_bytes as u32,
            k: k as u32,
            chunks: k.div_ceil(spec.form.chunk()) as u32,
            columns: spec.columns as u32,
            gate: if gated { 0 } else { -1 },
            x_f32: i32::from(normed),
            out_f32: i32::from(normed),
            scale: 1.0,
            eps: 1e-6,
            ..GemvArgs::default()
        };
        let launches = 2 * copies;
        let times = self.times_s(repeats, || {
            (0..launches).try_for_each(|i| {
                let half = 4 * width as u64;
                let (from, to) = (x.ptr() + i % 2 * half, x.ptr() + (i + 1) % 2 * half);
                let a = GemvArgs { w: all.ptr() + i % copies * weight_bytes, x: from, out: to, ..base };
                // SAFETY: arguments of the kernel; both halves of x have room for k and for rows values.
                unsafe {
                    self.queue(early).launch(kernel, Shape::line(grid, spec.block()).with_shared(shared), args![a])
                }
            })
        })?;
        Ok(times.iter().map(|time| (launches * weight_bytes) as f64 / time).collect())
    }
}

/// The middle of some numbers; 0 of none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
