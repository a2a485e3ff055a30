//! Kernels that both styles share, because there is only one way to do them: sums, copies, gathers.

mod add;
mod embed;
mod kv_write;
mod scale;
mod select_rows;

use super::step::{Kernel, Lowering};
use crit_core::runtime::EngineError;

/// How an op becomes a kernel.
pub type Lower = fn(Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError>;

/// An op's name with how it is lowered.
pub type Entry = (&'static str, Lower);

/// The shared kernels, sorted by op.
pub const KERNELS: &[Entry] = &[
    ("add", add::lower),
    ("embed", embed::lower),
    ("kv_write", kv_write::lower),
    ("scale", scale::lower),
    ("select_rows", select_rows::lower),
];
