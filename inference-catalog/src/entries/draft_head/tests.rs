//! Tests of the drafting head's entry. What the head does is the runtime's, and tested there.

use super::PLUGIN;
use crit_kernels::plugin::conformance;

#[test]
fn keeps_the_contract() {
    conformance::check(&PLUGIN).unwrap();
}
