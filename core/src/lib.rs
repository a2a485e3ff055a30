//! What every engine needs: model files, the step program, text, sampling, the runtime, plugin slots and the engine
//! protocol.
//!
//! Nothing here prints, knows HTTP or MCP, or runs a backend's kernels: kernels live in `crit-kernels`, policies in
//! `crit-catalog`, dialects in `crit-serve`. `unsafe` is allowed in `files::map` alone.

pub mod digest;
pub mod error;
pub mod export;
pub mod files;
pub mod json;
pub mod model;
pub mod plugin;
pub mod protocol;
pub mod runtime;
pub mod sampling;
pub mod text;
