//! To be written.

pub mod plugin;
