//! Evaluation: how fast a candidate is, how far from what the machine allows, and how close to the model's own
//! distribution.
//!
//! A candidate is measured from outside: through the running server ([`speed::served`]) and through the engine
//! protocol ([`speed::direct`], [`quality::run`]). No engine code is called here; `crit-kernels` is used for the
//! probe's primitives alone. What a number means, how it is obtained and which words a verdict uses stands in
//! `docs/evaluation.md`.
//!
//! Nothing prints. Functions that take long report what they do through a callback ([`Progress`]).
//!
//! Invariants: a median carries its samples; a share is computed from limits measured on this machine or not at all;
//! a figure that was not measured is absent, never zero; no speed verdict leaves this crate without a quality verdict
//! beside it ([`report::Evaluation::verdict`]).

pub mod ceiling;
pub mod census;
pub mod clock;
pub mod decision;
pub mod error;
pub mod kpi;
pub mod limits;
pub mod link;
pub mod probe;
pub mod profile;
pub mod quality;
pub mod report;
pub mod rng;
pub mod seal;
pub mod speed;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod workbench;

pub use error::EvalError;

/// Receives one line for each step of long work.
pub type Progress<'a> = &'a dyn Fn(&str);

/// Version of what is measured and how: two evaluations compare only at the same version.
pub const EVAL_VERSION: &str = "1";
