//! Launching kernels.

use super::compile::Function;
use super::error::CudaError;
use cudarc::driver::{result, sys};
use std::ffi::c_void;

/// Pointers to kernel arguments, in the kernel's order.
macro_rules! args {
    ($($arg:expr),+ $(,)?) => { &mut [$(std::ptr::from_ref(&$arg).cast_mut().cast::<std::ffi::c_void>()),+] };
}
pub(super) use args;

/// How kernels follow each other on a stream.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The stream.
    pub(super) stream: sys::CUstream,
    /// Whether a kernel may be set up while the one before it ends. Every kernel of `cu/` waits for its inputs itself.
    pub early: bool,
}

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

impl Shape {
    /// A grid of `x` blocks of `block` threads.
    pub const fn line(x: u32, block: u32) -> Self {
        Self { grid: (x, 1, 1), block, shared: 0 }
    }

    /// A grid of `x` times `y` blocks of `block` threads.
    pub const fn plane(x: u32, y: u32, block: u32) -> Self {
        Self { grid: (x, y, 1), block, shared: 0 }
    }

    /// The same with shared memory.
    pub const fn with_shared(self, shared: u32) -> Self {
        Self { shared, ..self }
    }
}

impl Queue {
    /// Puts a kernel on the stream. A grid without blocks is nothing to do.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and their pointers point at device memory of the sizes the kernel touches.
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        shape: Shape,
        args: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let Shape { grid, block, shared } = shape;
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        if !self.early {
            // SAFETY: the caller's promise.
            return unsafe { result::launch_kernel(function.0, grid, (block, 1, 1), shared, self.stream, args) }
                .map_err(CudaError::driver("launching a kernel"));
        }
        // SAFETY: a plain C struct and union for which zero is a valid value; the caller's promise.
        unsafe {
            let mut attribute: sys::CUlaunchAttribute = std::mem::zeroed();
            attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
            let config = sys::CUlaunchConfig {
                gridDimX: grid.0,
                gridDimY: grid.1,
                gridDimZ: grid.2,
                blockDimX: block,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: shared,
                hStream: self.stream,
                attrs: &mut attribute,
                numAttrs: 1,
            };
            sys::cuLaunchKernelEx(&config, function.0, args.as_mut_ptr(), std::ptr::null_mut())
                .result()
                .map_err(CudaError::driver("launching a kernel"))
        }
    }
}
