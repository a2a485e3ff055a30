//! The exact reference: f32 throughout, blocked and threaded, weights dequantised by row panel and never whole.
//!
//! It judges the quality of every engine, so it is proved against the plain reference on all fixtures and shares no
//! arithmetic with the base kernels. Sums over a row are f32 in matrix products and f64 in norms and softmax.

mod attention;
mod gated_act;
pub mod gemm;
pub(crate) mod linear;
mod moe_experts;
mod rms_norm;
mod rope;
pub(crate) mod softcap;

use crate::exec::common::Entry;

/// The exact kernels, sorted by op.
pub const KERNELS: &[Entry] = &[
    ("attention", attention::lower),
    ("gated_act", gated_act::lower),
    ("linear", linear::lower),
    ("moe_experts", moe_experts::lower),
    ("rms_norm", rms_norm::lower),
    ("rope", rope::lower),
    ("softcap", softcap::lower),
];
