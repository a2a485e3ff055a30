//! placeholder for checks
use crit_core::model::program::Precision;
use std::time::Duration;
/// x
pub struct Cpu;
impl Cpu {
    /// x
    pub fn new() -> Self { Self }
}
impl crit_eval::probe::Primitives for Cpu {
    fn read_bytes_s(&mut self, _: usize, _: usize, _: Duration) -> f64 { 1e10 }
    fn copy_bytes_s(&mut self, _: usize, _: usize, _: Duration) -> f64 { 1e10 }
    fn ops_s(&mut self, _: Precision, _: usize, _: Duration) -> Option<f64> { Some(1e11) }
}
