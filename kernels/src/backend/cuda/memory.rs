//! Device and pinned memory, counted by what it is for.

use super::device::Device;
use super::error::CudaError;
use crit_core::runtime::MemoryUse;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Weights as stored.
    Weights,
    /// Weights in another form than stored.
    Packs,
    /// Keys and values.
    State,
    /// Values of a step.
    Activations,
    /// Scratch space.
    Workspace,
}

/// Bytes held on a device by purpose.
#[derive(Debug, Default)]
pub struct Ledger([AtomicU64; 5]);

impl Ledger {
    /// As an executor tells it.
    pub fn told(&self) -> MemoryUse {
        let of = |purpose: Purpose| self.0[purpose as usize].load(Ordering::Relaxed);
        MemoryUse {
            weights_bytes: of(Purpose::Weights),
            packs_bytes: of(Purpose::Packs),
            state_bytes: of(Purpose::State),
            activations_bytes: of(Purpose::Activations),
            workspace_bytes: of(Purpose::Workspace),
        }
    }
}

/// A run of device memory; freed when dropped.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Device>,
    ledger: Arc<Ledger>,
    purpose: Purpose,
    ptr: u64,
    bytes: u64,
}

impl Buffer {
    /// `bytes` of memory, at a multiple of 256; its contents are zero.
    ///
    /// # Errors
    /// There is not as much.
    pub fn zeroed(device: &Arc<Device>, ledger: &Arc<Ledger>, purpose: Purpose, bytes: u64) -> Result<Self, CudaError> {
        let (free_bytes, _) = device.memory()?;
        let size = bytes.max(256);
        let short =
            || CudaError::Memory { what: format!("{purpose:?}").to_lowercase(), needed_bytes: size, free_bytes };
        if size > free_bytes {
            return Err(short());
        }
        // SAFETY: the context is current; the memory is freed in `drop`, and set before anybody can read it.
        let ptr = unsafe {
            let ptr = result::malloc_sync(size as usize).map_err(|_| short())?;
            result::memset_d8_async(ptr, 0, size as usize, device.stream).map_err(CudaError::driver("memset"))?;
            ptr
        };
        ledger.0[purpose as usize].fetch_add(size, Ordering::Relaxed);
        Ok(Self { device: device.clone(), ledger: ledger.clone(), purpose, ptr, bytes: size })
    }

    /// Where it is.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        // SAFETY: allocated by `zeroed`, and no kernel uses it any more.
        let _ = unsafe { result::free_sync(self.ptr) };
        self.ledger.0[self.purpose as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Host memory the device copies from and to at full speed.
#[derive(Debug)]
pub struct Pinned {
    device: Arc<Device>,
    ptr: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` of it, zero.
    ///
    /// # Errors
    /// There is not as much.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let bytes = bytes.max(256);
        // SAFETY: freed in `drop`; cleared before anybody reads it.
        let ptr = unsafe {
            let ptr = result::malloc_host(bytes, 0).map_err(CudaError::driver("pinned memory"))?;
            std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes);
            ptr
        };
        Ok(Self { device: device.clone(), ptr, bytes })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As words.
    pub fn words(&mut self) -> &mut [u32] {
        // SAFETY: initialised, aligned far beyond 4, and borrowed mutably with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes / 4) }
    }

    /// As floats.
    pub fn floats(&self) -> &[f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes / 4) }
    }

    /// As bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes) }
    }

    /// Copies its first `bytes` to the device, in order with `stream`.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn upload(&self, to: u64, bytes: usize, stream: sys::CUstream) -> Result<(), CudaError> {
        assert!(bytes <= self.bytes, "within the buffer");
        // SAFETY: `to` points at device memory of at least `bytes`, as its owner sized it.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, self.ptr, bytes, stream).result() }
            .map_err(CudaError::driver("copy to the device"))
    }

    /// Copies `bytes` from the device to its beginning, in order with `stream`.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn download(&mut self, from: u64, bytes: usize, stream: sys::CUstream) -> Result<(), CudaError> {
        assert!(bytes <= self.bytes, "within the buffer");
        // SAFETY: as above.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.ptr, from, bytes, stream).result() }
            .map_err(CudaError::driver("copy from the device"))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        let _ = self.device.wait();
        // SAFETY: allocated by `new`, no copy is under way.
        let _ = unsafe { result::free_host(self.ptr) };
    }
}
