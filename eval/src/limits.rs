//! What the machine can do at most: the measured limits every ceiling is computed from.

use crit_core::model::program::Precision;
use serde::{Deserialize, Serialize};

/// A level of the memory hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLevel {
    /// First-level cache, of one core.
    L1,
    /// Second-level cache, of one core.
    L2,
    /// Last-level cache, shared.
    L3,
    /// Main memory.
    Dram,
}

impl MemoryLevel {
    /// As people write it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::Dram => "DRAM",
        }
    }
}

/// How fast a working set of a size can be read over and over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadLimit {
    /// Bytes read over and over, by all threads together.
    pub working_set_bytes: u64,
    /// The level that holds them.
    pub level: MemoryLevel,
    /// Bytes a second, median.
    pub bytes_s: f64,
    /// How far the best sample stood above the median, as a share.
    pub above_share: f64,
}

/// How fast products of a number format can be computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ArithmeticLimit {
    /// Number format.
    pub precision: Precision,
    /// Operations a second (a multiply-add is two), median.
    pub ops_s: f64,
    /// How far the best sample stood above the median, as a share.
    pub above_share: f64,
}

/// The limits of a number of threads of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Limits {
    /// Threads that were used.
    pub threads: u32,
    /// Read limits by working set, ascending.
    pub read: Vec<ReadLimit>,
    /// Arithmetic limits of the formats the machine has instructions for.
    pub arithmetic: Vec<ArithmeticLimit>,
    /// Seconds every pass takes whatever it computes (launch, hand-over between threads); 0 where nothing forces it.
    pub serial_s: f64,
    /// Why the machine was not steady while it was measured; empty if it was.
    pub unstable: Vec<String>,
}

impl Limits {
    /// The limit for reading a working set of `bytes` over and over: that of the largest measured working set not
    /// above it, so that the limit is never below what the machine may do. A larger working set cannot be faster
    /// than a smaller one, so an inversion in the measurements counts as noise of the smaller one.
    pub fn read_limit(&self, bytes: u64) -> Option<ReadLimit> {
        let first_above = self.read.partition_point(|limit| limit.working_set_bytes <= bytes);
        let start = first_above.saturating_sub(1);
        let fastest = self.read[start..].iter().max_by(|a, b| a.bytes_s.total_cmp(&b.bytes_s))?;
        Some(ReadLimit { bytes_s: fastest.bytes_s, above_share: fastest.above_share, ..self.read.get(start)?.clone() })
    }

    /// The arithmetic limit of a format. A format without instructions of its own is computed in the fastest wider
    /// one there is.
    pub fn arithmetic_limit(&self, precision: Precision) -> Option<&ArithmeticLimit> {
        std::iter::once(precision)
            .chain(wider(precision).iter().copied())
            .find_map(|wanted| self.arithmetic.iter().find(|limit| limit.precision == wanted))
    }

    /// The fastest of several formats.
    pub fn fastest(&self, among: &[Precision]) -> Option<&ArithmeticLimit> {
        among
            .iter()
            .filter_map(|precision| self.arithmetic_limit(*precision))
            .max_by(|a, b| a.ops_s.total_cmp(&b.ops_s))
    }

    /// Whether the machine was steady enough for a verdict.
    pub fn is_stable(&self) -> bool {
        self.unstable.is_empty()
    }
}

fn wider(precision: Precision) -> &'static [Precision] {
    match precision {
        Precision::F32 => &[],
        Precision::Bf16 | Precision::F16 | Precision::Int8 => &[Precision::F32],
        Precision::Fp8 => &[Precision::F16, Precision::Bf16, Precision::F32],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Round limits for sums done by hand: L2 80 GB/s to 2 MB, L3 40 GB/s to 32 MB, DRAM 20 GB/s; f32 100 G, bf16 200 G,
    /// int8 400 G operations a second; spreads of 2 % and 1 %.
    pub(crate) fn round_limits() -> Limits {
        let read = |level, working_set_bytes, gb_s: f64| ReadLimit {
            working_set_bytes,
            level,
            bytes_s: gb_s * 1e9,
            above_share: 0.02,
        };
        let arithmetic = |precision, gops: f64| ArithmeticLimit { precision, ops_s: gops * 1e9, above_share: 0.01 };
        Limits {
            threads: 2,
            read: vec![
                read(MemoryLevel::L2, 1 << 20, 80.0),
                read(MemoryLevel::L3, 8 << 20, 40.0),
                read(MemoryLevel::Dram, 128 << 20, 20.0),
            ],
            arithmetic: vec![
                arithmetic(Precision::F32, 100.0),
                arithmetic(Precision::Bf16, 200.0),
                arithmetic(Precision::Int8, 400.0),
            ],
            serial_s: 0.0,
            unstable: Vec::new(),
        }
    }

    #[test]
    fn a_working_set_gets_the_limit_of_the_largest_measured_one_below_it() {
        let limits = round_limits();
        let level = |bytes| limits.read_limit(bytes).map(|l| (l.level, l.bytes_s / 1e9));
        assert_eq!(level(10), Some((MemoryLevel::L2, 80.0)));
        assert_eq!(level(8 << 20), Some((MemoryLevel::L3, 40.0)));
        assert_eq!(level((128 << 20) - 1), Some((MemoryLevel::L3, 40.0)));
        assert_eq!(level(1 << 40), Some((MemoryLevel::Dram, 20.0)));
        assert_eq!(Limits::default().read_limit(1), None);
    }

    #[test]
    fn a_larger_working_set_that_measured_faster_lifts_the_smaller() {
        let mut limits = round_limits();
        limits.read[2].bytes_s = 50e9;
        assert_eq!(limits.read_limit(8 << 20).unwrap().bytes_s, 50e9);
    }

    #[test]
    fn a_format_without_instructions_uses_the_wider_one() {
        let limits = round_limits();
        assert_eq!(limits.arithmetic_limit(Precision::Fp8).unwrap().precision, Precision::Bf16);
        assert_eq!(limits.fastest(&[Precision::F32, Precision::Int8]).unwrap().precision, Precision::Int8);
    }
}
