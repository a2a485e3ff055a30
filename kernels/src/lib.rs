//! Backends, the base kernels of every op, and the exact reference.
//!
//! - [`backend`]: backends beside the embedded CPU one: CUDA.
//! - [`cpu`]: threads, instruction sets, kernels on plain slices.
//! - [`exec`]: lowers a step program to kernels and runs steps on the CPU.
//! - [`exact`]: the exact reference, f32 throughout; it judges quality.
//! - [`plugin`]: how code outside this crate fills slots and claims ops.
//! - [`probe`]: the timed loops behind the machine's limits.
//!
//! Nothing here prints, opens files or knows requests: models come from `crit-core` and steps from its runtime.
#![allow(unsafe_code)]

pub mod backend;
pub mod cpu;
pub mod exact;
pub mod exec;
pub mod plugin;
pub mod probe;
