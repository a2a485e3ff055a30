//! Finding GPUs and opening one.

use super::error::CudaError;
use cudarc::driver::{result, sys};
use std::ffi::c_int;
use std::sync::Arc;

/// Least compute capability the kernels are written for.
const LEAST: (i32, i32) = (8, 0);

/// Why there is no GPU to use, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// No driver.
    #[error("no GPU is used: the NVIDIA driver's library (libcuda) is not found")]
    NoDriver,
    /// The driver refuses.
    #[error("no GPU is used: the NVIDIA driver does not start: {0}")]
    DriverFails(String),
    /// No device.
    #[error("no GPU is used: the NVIDIA driver sees no device")]
    NoDevice,
    /// A device that is not there.
    #[error("no GPU is used: device {asked} is not there, {count} are")]
    NoSuch {
        /// Number asked for.
        asked: usize,
        /// Devices there are.
        count: usize,
    },
    /// Too old.
    #[error("GPU {name} is not used: its compute capability {major}.{minor} is below 8.0")]
    TooOld {
        /// Its name.
        name: String,
        /// Major number.
        major: i32,
        /// Minor number.
        minor: i32,
    },
    /// A library beside the driver is missing.
    #[error("no GPU is used: the library {0} is not found")]
    NoLibrary(&'static str),
}

impl Absent {
    /// What to do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoDriver | Self::DriverFails(_) | Self::NoDevice => "use target `cpu`, or install the NVIDIA driver",
            Self::NoSuch { .. } => "`crit doctor` lists the devices",
            Self::TooOld { .. } => "use target `cpu`",
            Self::NoLibrary(_) => {
                "install the CUDA toolkit's runtime libraries and name their folder in LD_LIBRARY_PATH"
            }
        }
    }
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DeviceFacts {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Most bytes of shared memory a block can have.
    pub shared_bytes: u32,
    /// Version of the driver's interface: 13000 is 13.0.
    pub driver_version: i32,
}

fn start() -> Result<(), Absent> {
    // SAFETY: only looks for the library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err(Absent::NoDriver);
    }
    result::init().map_err(|error| Absent::DriverFails(format!("{:?}", error.0)))
}

/// All devices.
///
/// # Errors
/// No driver, or none that starts, or no device.
pub fn devices() -> Result<Vec<DeviceFacts>, Absent> {
    start()?;
    let count = result::device::get_count().map_err(|error| Absent::DriverFails(format!("{:?}", error.0)))?;
    if count == 0 {
        return Err(Absent::NoDevice);
    }
    (0..count as usize).map(facts).collect()
}

fn facts(ordinal: usize) -> Result<DeviceFacts, Absent> {
    let fails = |error: cudarc::driver::DriverError| Absent::DriverFails(format!("{:?}", error.0));
    let device = result::device::get(ordinal as c_int).map_err(fails)?;
    use sys::CUdevice_attribute as A;
    // SAFETY: `device` is a handle the driver just gave, the attributes are the driver's own constants.
    let get = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(fails);
    let mut driver_version = 0;
    // SAFETY: writes one int.
    let _ = unsafe { sys::cuDriverGetVersion(&mut driver_version) };
    Ok(DeviceFacts {
        ordinal,
        name: result::device::get_name(device).map_err(fails)?,
        capability: (
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(fails)? as u64,
        l2_bytes: get(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.max(0) as u64,
        shared_bytes: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.max(0) as u32,
        driver_version,
    })
}

/// An open device with one stream. Its context is current on the thread that opened it; [`Device::make_current`] makes it so on
/// another.
#[derive(Debug)]
pub struct Device {
    /// What it says of itself.
    pub facts: DeviceFacts,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
}

// SAFETY: contexts and streams may be used from any thread that makes the context current.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// There is none, or it is too old, or the driver refuses.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let all = devices()?;
        let Some(facts) = all.get(ordinal).cloned() else {
            return Err(Absent::NoSuch { asked: ordinal, count: all.len() }.into());
        };
        let (major, minor) = facts.capability;
        if facts.capability < LEAST {
            return Err(Absent::TooOld { name: facts.name, major, minor }.into());
        }
        let handle = result::device::get(ordinal as c_int).map_err(CudaError::driver("device"))?;
        // SAFETY: the primary context is retained here and released in `drop`; the stream is made in it.
        let (context, stream) = unsafe {
            let context = result::primary_ctx::retain(handle).map_err(CudaError::driver("context"))?;
            result::ctx::set_current(context).map_err(CudaError::driver("context"))?;
            let stream =
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(CudaError::driver("stream"))?;
            (context, stream)
        };
        Ok(Arc::new(Self { facts, handle, context, stream }))
    }

    /// Makes the device's context current on this thread.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(CudaError::driver("context"))
    }

    /// Bytes free and in all.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.make_current()?;
        result::mem_get_info().map(|(free, all)| (free as u64, all as u64)).map_err(CudaError::driver("memory"))
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// Some of it failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(CudaError::driver("waiting for kernels"))
    }

    /// `sm_90` and the like; with the suffix `a` where the architecture has instructions of its own.
    pub fn arch(&self) -> String {
        let (major, minor) = self.facts.capability;
        let own = if (major, minor) >= (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing that used context or stream outlives the `Arc` it holds.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.handle);
        }
    }
}
