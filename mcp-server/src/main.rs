//! crit.
fn main() {}
