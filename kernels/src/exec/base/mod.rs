//! The base kernels: what runs where no plugin claims an op. Weights as stored, activations f32, KV rows f16.

mod attention;
mod attention_run;
mod gated_act;
pub(crate) mod lanes;
mod linear;
mod moe_experts;
mod rms_norm;
mod rope;

pub use rope::TurnTables;

use super::common::Entry;
use crate::cpu::Isa;
use crate::cpu::linear::{ActKind, format};
use crate::exact;
use crit_core::model::Model;
use crit_core::model::program::Precision;

/// The base kernels, sorted by op.
pub const KERNELS: &[Entry] = &[
    ("attention", attention::lower),
    ("gated_act", gated_act::lower),
    ("linear", linear::lower),
    ("moe_experts", moe_experts::lower),
    ("rms_norm", rms_norm::lower),
    ("rope", rope::lower),
    ("softcap", exact::softcap::lower),
];

/// Number formats of the matrix products, for ceilings: that of the format most weight bytes are stored in.
pub fn precision(model: &Model, isa: Isa) -> (Precision, Precision) {
    let bytes = model.checkpoint.bytes_by_dtype();
    let most = bytes.iter().max_by_key(|(_, bytes)| **bytes).and_then(|(dtype, _)| format(dtype.name()));
    let precision = match most.map(|format| (format.act)(isa)) {
        Some(ActKind::Bf16) => Precision::Bf16,
        Some(ActKind::Q8x32 | ActKind::Q8x256) => Precision::Int8,
        _ => Precision::F32,
    };
    (precision, precision)
}
