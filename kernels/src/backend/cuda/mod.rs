//! The CUDA backend: the step program on an NVIDIA GPU.
//!
//! Driver, NVRTC and cuBLASLt are loaded when first asked for, so one binary serves machines with and without a GPU;
//! [`device::devices`] says in one line why there is none. Kernels are CUDA C++ text in `cu/`, compiled for the very device and the
//! checkpoint's own shapes, and kept as cubins by digest ([`compile`]).
//!
//! An engine is built in this order: [`plan`] walks the program and makes [`unit`]s of its nodes, fusing neighbours where the strategies
//! chosen say so; weights go to the device in the form a unit reads ([`weights`]); the kernels the units named are compiled;
//! and [`executor`] runs steps. A step of one token a sequence is a captured graph for each of a few batch widths, padded rows
//! marked in the tables; everything that varies lies in tables on the device. Nothing is allocated and the host waits once in a step.
//!
//! Values are bf16, those of the residual stream, of routers and logits f32. Weights stay as stored where a form for it exists
//! (bf16, f16, Q8_0, Q4_K, Q6_K); others are rounded to bf16 once, which [`crit_core::runtime::ExecutorInfo::stored_bytes`] tells.

pub mod blas;
pub mod compile;
pub mod device;
pub mod error;
pub mod executor;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod plan;
pub mod probe;
pub mod strategy;
pub mod unit;
pub mod weights;

pub use device::{Absent, Device, DeviceFacts, devices};
pub use error::CudaError;
pub use executor::{CudaExecutor, CudaOptions, build};
pub use strategy::Strategy;
