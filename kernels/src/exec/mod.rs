//! The CPU executor: lowers a step program to kernels and runs steps.
//!
//! Lowering contract: [`Kernel::plan`]-time work happens when a kernel is made (packs and their bytes, once);
//! [`Kernel::prepare`] may allocate for the largest step; [`Kernel::enqueue`] allocates nothing that grows, depends on
//! the step's tables only, and may not keep anything from step to step outside the state.
//!
//! Two styles share executor, tables and state: `exact` (f32 throughout, judge of quality) and `base`. Their kernels
//! are separate code, so that a fault of one is seen by the other, and both are judged by the plain reference.

pub mod base;
pub mod common;
pub mod build;
pub mod build;
