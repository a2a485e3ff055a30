//! Backends other than the embedded CPU one.

pub mod cuda;
