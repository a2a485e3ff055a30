//! The CPU executor: lowers a step program to kernels and runs steps.
//!
//! Lowering contract: what is done once (packs and their bytes) happens when a kernel is made; [`Kernel::prepare`] may
//! allocate for the largest step; [`Kernel::enqueue`] allocates nothing that grows, depends on the step's tables only,
//! and keeps nothing from step to step outside the state.
//!
//! Two styles share executor, tables and state: `exact` (f32 throughout, judge of quality) and `base`. Their kernels
//! are separate code, so that a fault of one is seen by the other, and both are judged by the plain reference.

pub mod base;
pub mod build;
pub mod common;
pub mod executor;
pub mod kv;
pub mod products;
pub mod recurrent;
pub mod step;

pub use build::{BuildError, ExecOptions, Style, build, needed_bytes};
pub use executor::CpuExecutor;
pub use kv::{KvF16, KvF32, KvFormat, KvStore};
pub use products::Products;
pub use recurrent::{RecurrentStore, SlotStates};
pub use step::{Kernel, Lowering, OpPlugin, StateKey, StepCx, Values};
