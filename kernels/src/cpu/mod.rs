//! The CPU backend: threads, instruction sets, and kernels on plain slices.
//!
//! Kernels here know slices, sizes and an [`Isa`]; programs and tables belong to the executor ([`crate::exec`]).

pub mod codes;
pub mod halves;
pub mod isa;
pub mod linear;
pub mod pool;
pub mod shared;

pub use isa::{Isa, IsaLevel};
pub use pool::{Pool, PoolError};
