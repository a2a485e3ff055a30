//! The base kernels: what runs where no plugin claims an op.

use super::common::Entry;
use crate::cpu::Isa;
use crit_core::model::Model;
use crit_core::model::program::Precision;

/// The base kernels, sorted by op.
pub const KERNELS: &[Entry] = crate::exact::KERNELS;

/// Number formats of the matrix products: (few rows, many rows).
pub fn precision(_: &Model, _: Isa) -> (Precision, Precision) {
    (Precision::F32, Precision::F32)
}
