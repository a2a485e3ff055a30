//! What can go wrong on a GPU.

use super::device::Absent;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::runtime::EngineError;
use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;

/// Why something did not happen on the GPU.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no usable GPU.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// A driver call failed.
    #[error("CUDA: {what}: {why}")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// The driver's own words.
        why: String,
    },
    /// A kernel does not compile.
    #[error("kernel file {file} does not compile for {arch}:\n{log}")]
    Compile {
        /// The file.
        file: String,
        /// Target architecture.
        arch: String,
        /// NVRTC's log, with kernel and line.
        log: String,
    },
    /// A library call failed.
    #[error("cuBLASLt: {what}: {why}")]
    Blas {
        /// What was tried.
        what: String,
        /// The library's status.
        why: String,
    },
    /// The device's memory does not suffice.
    #[error("{what} needs {needed_bytes} bytes of GPU memory and {free_bytes} are free")]
    Memory {
        /// What for.
        what: String,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// The program has an op, or a variant of one, without a kernel here.
    #[error("op `{op}` has no CUDA kernel{}", if .why.is_empty() { String::new() } else { format!(": {}", .why) })]
    NoKernel {
        /// The op.
        op: String,
        /// Which variant, if not the op as such.
        why: String,
    },
    /// A tensor cannot be read.
    #[error(transparent)]
    File(#[from] crit_core::files::FileError),
}

impl CudaError {
    /// From a driver call.
    pub(super) fn driver(what: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver { what, why: describe(error) }
    }

    /// From a library call.
    pub(super) fn blas(what: impl Into<String>) -> impl FnOnce(CublasError) -> Self {
        let what = what.into();
        move |error| Self::Blas { what, why: format!("{:?}", error.0) }
    }
}

fn describe(error: DriverError) -> String {
    let words = error.error_string().ok().and_then(|text| text.to_str().ok().map(String::from));
    words.unwrap_or_else(|| format!("{:?}", error.0))
}

impl Diagnose for CudaError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent(_) | Self::Memory { .. } => ErrorKind::Environment,
            Self::NoKernel { .. } => ErrorKind::Input,
            Self::File(error) => error.kind(),
            Self::Driver { .. } | Self::Compile { .. } | Self::Blas { .. } => ErrorKind::Engine,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Absent(absent) => Some(absent.hint().into()),
            Self::Memory { .. } => {
                Some("lower `context` or `max_batch` in engine.json, or take a smaller checkpoint".into())
            }
            Self::NoKernel { .. } => Some("use target `cpu`; docs/cuda.md lists the ops there are".into()),
            Self::Driver { .. } => Some("`crit doctor` shows driver and libraries".into()),
            Self::Compile { .. } | Self::Blas { .. } => None,
            Self::File(error) => error.hint(),
        }
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Memory { what, needed_bytes, free_bytes } => Self::Memory { what, needed_bytes, free_bytes },
            CudaError::NoKernel { .. } | CudaError::Absent(_) => Self::Unsupported { message: error.to_string() },
            other => Self::Kernel { op: "cuda".into(), message: other.to_string() },
        }
    }
}
