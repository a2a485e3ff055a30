//! Kernels that both styles share, because there is only one way to do them: sums, copies, gathers,
//! recurrences.

mod act;
mod add;
mod add_positions;
mod embed;
mod gated_delta;
mod gated_norm;
mod kv_write;
mod layer_norm;
mod mamba2;
mod mul;
mod recurrence;
pub(crate) mod rows;
mod scale;
mod select_rows;
mod short_conv;
mod take_columns;

use super::step::{Kernel, Lowering};
use crit_core::runtime::EngineError;

/// How an op becomes a kernel.
pub type Lower = fn(Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError>;

/// An op's name with how it is lowered.
pub type Entry = (&'static str, Lower);

/// The shared kernels, sorted by op.
pub const KERNELS: &[Entry] = &[
    ("act", act::lower),
    ("add", add::lower),
    ("add_positions", add_positions::lower),
    ("embed", embed::lower),
    ("gated_delta", gated_delta::lower),
    ("gated_norm", gated_norm::lower),
    ("kv_write", kv_write::lower),
    ("layer_norm", layer_norm::lower),
    ("mamba2", mamba2::lower),
    ("mul", mul::lower),
    ("scale", scale::lower),
    ("select_rows", select_rows::lower),
    ("short_conv", short_conv::lower),
    ("take_columns", take_columns::lower),
];
