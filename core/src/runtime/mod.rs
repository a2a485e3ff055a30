//! The runtime inside an engine host: admission, scheduling, state tables, the step loop.
//!
//! [`Engine`] owns an [`Executor`] and everything that decides what it runs. One thread owns the engine; nothing here
//! waits, sleeps or speaks to anyone: requests come in by calls, events go out once a step.

pub mod batch;
pub mod blocks;
pub mod draft;
mod engine;
pub mod executor;
mod passes;
mod scheduler;
pub mod score;
mod sequence;
mod state;
#[cfg(test)]
mod tests;
pub mod toy;

pub use batch::{SeqStep, StepBatch};
pub use engine::{Engine, EngineConfig, Event, Policies, RequestError};
pub use executor::{EngineError, Executor, ExecutorInfo, MemoryUse, OpTime};
pub use score::{ScoreError, ScoreRun};
