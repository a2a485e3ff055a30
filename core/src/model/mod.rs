//! From a checkpoint's config to a step program, and the plain reference that judges every kernel.

pub mod arch;
pub mod plain;
pub mod program;
