//! `moe_experts` by exact products.

use crate::exec::common::moe_experts::{Exactly, lower_with};
use crate::exec::step::{Kernel, Lowering};
use crit_core::runtime::EngineError;

pub(super) fn lower(node: Lowering<'_>) -> Result<Box<dyn Kernel>, EngineError> {
    let exactly = Exactly(node.isa);
    lower_with(node, exactly)
}
