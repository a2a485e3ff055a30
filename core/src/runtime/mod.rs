//! The runtime inside an engine host: admission, scheduling, state tables, the step loop.

pub mod batch;
pub mod executor;

pub use batch::{SeqStep, StepBatch};
pub use executor::{EngineError, Executor, ExecutorInfo, MemoryUse, OpTime};
