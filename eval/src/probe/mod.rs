//! The probe: what this machine can do at most, measured.
//!
//! Reading is measured at working sets from the first-level cache to main memory, arithmetic in every number format
//! the machine has instructions for, each at several thread counts. Repeats go round all points rather than staying at
//! one, so that drift of the machine falls on all of them. A point is the median of its repeats; the machine is called
//! unstable, with the reason, when points spread, when the hypervisor took time away or when others used the
//! processors meanwhile.
//!
//! What runs in the timed loops is not here but behind [`Primitives`]; `crit-kernels` has the real ones.

pub mod machine;
mod watch;

pub use machine::{Cache, Machine};
pub use watch::Watch;

use crate::Progress;
use crate::error::EvalError;
use crate::limits::{ArithmeticLimit, Limits, MemoryLevel, ReadLimit};
use crate::stats::Measured;
use crit_core::model::program::Precision;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The timed loops of a probe.
pub trait Primitives {
    /// Reads a working set over and over with so many threads for about `time`; answers bytes a second.
    fn read_bytes_s(&mut self, working_set_bytes: usize, threads: usize, time: Duration) -> f64;

    /// Copies between two buffers of this size with so many threads for about `time`; answers bytes read plus bytes
    /// written a second.
    fn copy_bytes_s(&mut self, bytes: usize, threads: usize, time: Duration) -> f64;

    /// Multiplies and adds in a number format with so many threads for about `time`; answers operations a second, a
    /// multiply-add being two, or `None` if the machine has no instructions for the format.
    fn ops_s(&mut self, precision: Precision, threads: usize, time: Duration) -> Option<f64>;
}

impl Primitives for crit_kernels::probe::MachineProbe {
    fn read_bytes_s(&mut self, working_set_bytes: usize, threads: usize, time: Duration) -> f64 {
        Self::read_bytes_s(self, working_set_bytes, threads, time)
    }

    fn copy_bytes_s(&mut self, bytes: usize, threads: usize, time: Duration) -> f64 {
        Self::copy_bytes_s(self, bytes, threads, time)
    }

    fn ops_s(&mut self, precision: Precision, threads: usize, time: Duration) -> Option<f64> {
        Self::ops_s(self, precision, threads, time)
    }
}

/// Probes this machine with the real loops.
///
/// # Errors
/// As [`probe`].
pub fn probe_machine(options: &ProbeOptions, progress: Progress<'_>) -> Result<Probe, EvalError> {
    probe(&mut crit_kernels::probe::MachineProbe::new(), options, progress)
}

/// How thoroughly to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Repeats of each point.
    pub repeats: usize,
    /// Time of each sample.
    pub sample: Duration,
    /// Working sets between a size and its double.
    pub points_per_doubling: u32,
    /// Thread counts; empty for 1 and all.
    pub threads: Vec<usize>,
    /// Further working sets, such as a model's own bytes a pass.
    pub working_sets_bytes: Vec<u64>,
}

impl ProbeOptions {
    /// A few seconds: every doubling, one thread and all.
    pub fn quick() -> Self {
        Self {
            repeats: 5,
            sample: Duration::from_millis(15),
            points_per_doubling: 1,
            threads: Vec::new(),
            working_sets_bytes: Vec::new(),
        }
    }

    /// About a minute on two cores: twice as many sizes, more and longer samples.
    pub fn full() -> Self {
        Self { repeats: 9, sample: Duration::from_millis(50), points_per_doubling: 2, ..Self::quick() }
    }
}

/// Read bandwidth of a working set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadPoint {
    /// Threads.
    pub threads: u32,
    /// Bytes read over and over, by all threads together.
    pub working_set_bytes: u64,
    /// The level that holds them.
    pub level: MemoryLevel,
    /// Bytes a second.
    pub bytes_s: Measured,
}

/// Copy bandwidth in main memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CopyPoint {
    /// Threads.
    pub threads: u32,
    /// Bytes of each of the two buffers.
    pub buffer_bytes: u64,
    /// Bytes read plus bytes written a second.
    pub bytes_s: Measured,
}

/// Arithmetic rate in a number format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ArithmeticPoint {
    /// Threads.
    pub threads: u32,
    /// Number format.
    pub precision: Precision,
    /// Operations a second; absent if the machine has no instructions for the format.
    pub ops_s: Option<Measured>,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Probe {
    /// The machine.
    pub machine: Machine,
    /// Read bandwidths, by threads and working set.
    pub read: Vec<ReadPoint>,
    /// Copy bandwidths, by threads.
    pub copy: Vec<CopyPoint>,
    /// Arithmetic rates, by threads and format.
    pub arithmetic: Vec<ArithmeticPoint>,
    /// Why the machine was not steady meanwhile; empty if it was.
    pub unstable: Vec<String>,
    /// Time the probe took, milliseconds.
    pub took_ms: u64,
}

/// Points spread more than this are noise, not a limit. Steady machines stay within 2 to 3 %.
pub const SPREAD_LIMIT: f64 = 0.08;

/// Number formats a CPU may have instructions for.
pub const FORMATS: &[Precision] = &[Precision::F32, Precision::Bf16, Precision::F16, Precision::Int8];

/// Probes this machine.
///
/// # Errors
/// The machine does not tell what it is, or a sample is no number.
pub fn probe(
    primitives: &mut dyn Primitives,
    options: &ProbeOptions,
    progress: Progress<'_>,
) -> Result<Probe, EvalError> {
    let machine = Machine::read()?;
    let start = Instant::now();
    let watch = Watch::start();
    let threads = thread_counts(&machine, options);
    let sets = working_sets(&machine, options);
    let mut samples = Samples::default();
    for repeat in 1..=options.repeats.max(1) {
        progress(&format!("probe: round {repeat} of {} ({} working sets)", options.repeats.max(1), sets.len()));
        samples.round(primitives, &threads, &sets, copy_bytes(&machine), options.sample);
    }
    let mut probe = samples.finish(machine, &threads, &sets)?;
    probe.unstable = watch.finish().complaints();
    probe.unstable.extend(spread_complaint(&probe));
    if probe.machine.flags.iter().any(|flag| flag.starts_with("amx")) {
        // No stable intrinsics yet: an engine that uses them could stand above the arithmetic limits measured here.
        probe.unstable.push("the matrix units (AMX) are not measured, so limits of bf16 and int8 are too low".into());
    }
    probe.took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(probe)
}

fn thread_counts(machine: &Machine, options: &ProbeOptions) -> Vec<usize> {
    let all = machine.cores as usize;
    let mut threads = if options.threads.is_empty() { vec![1, all] } else { options.threads.clone() };
    threads.retain(|t| *t >= 1);
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// From half a first-level cache to eight last-level caches (at least 128 MiB, at most an eighth of the free memory):
/// a virtual machine's share of the last level is sometimes larger than it is told.
fn working_sets(machine: &Machine, options: &ProbeOptions) -> Vec<usize> {
    let smallest = (machine.cache_bytes(1).unwrap_or(32 << 10) / 2).max(4 << 10);
    let most = (machine.memory_free_bytes / 8).max(smallest);
    let largest = (8 * machine.last_level_bytes()).max(128 << 20).min(most);
    let factor = 2f64.powf(1.0 / f64::from(options.points_per_doubling.max(1)));
    let mut sets: Vec<u64> = std::iter::successors(Some(smallest as f64), |size| Some(size * factor))
        .take_while(|size| *size <= largest as f64)
        .map(|size| size as u64)
        .collect();
    sets.extend(options.working_sets_bytes.iter().map(|bytes| (*bytes).clamp(smallest, most)));
    // Whole cache lines; and a line for each of many threads.
    let mut sets: Vec<usize> = sets.iter().map(|bytes| (*bytes as usize) & !4095).filter(|bytes| *bytes > 0).collect();
    sets.sort_unstable();
    sets.dedup();
    sets
}

fn copy_bytes(machine: &Machine) -> usize {
    (2 * machine.last_level_bytes()).max(32 << 20).min(machine.memory_free_bytes / 16) as usize
}

#[derive(Default)]
struct Samples {
    read: Vec<Vec<f64>>,
    copy: Vec<Vec<f64>>,
    arithmetic: Vec<Vec<Option<f64>>>,
    copy_bytes: usize,
}

impl Samples {
    fn round(
        &mut self,
        primitives: &mut dyn Primitives,
        threads: &[usize],
        sets: &[usize],
        copy_bytes: usize,
        time: Duration,
    ) {
        self.copy_bytes = copy_bytes;
        self.read.resize(threads.len() * sets.len(), Vec::new());
        self.copy.resize(threads.len(), Vec::new());
        self.arithmetic.resize(threads.len() * FORMATS.len(), Vec::new());
        for (t, count) in threads.iter().enumerate() {
            for (s, bytes) in sets.iter().enumerate() {
                self.read[t * sets.len() + s].push(primitives.read_bytes_s(*bytes, *count, time));
            }
            self.copy[t].push(primitives.copy_bytes_s(copy_bytes, *count, time));
            for (f, format) in FORMATS.iter().enumerate() {
                self.arithmetic[t * FORMATS.len() + f].push(primitives.ops_s(*format, *count, time));
            }
        }
    }

    fn finish(self, machine: Machine, threads: &[usize], sets: &[usize]) -> Result<Probe, EvalError> {
        let mut probe = Probe {
            machine,
            read: Vec::new(),
            copy: Vec::new(),
            arithmetic: Vec::new(),
            unstable: Vec::new(),
            took_ms: 0,
        };
        let Self { read, copy, arithmetic, copy_bytes } = self;
        let places = threads.iter().flat_map(|t| sets.iter().map(move |bytes| (*t, *bytes as u64)));
        for ((threads, working_set_bytes), samples) in places.zip(read) {
            let level = probe.machine.level(working_set_bytes, threads as u32);
            let bytes_s = measured(samples, "reading")?;
            probe.read.push(ReadPoint { threads: threads as u32, working_set_bytes, level, bytes_s });
        }
        for (threads, samples) in threads.iter().zip(copy) {
            let bytes_s = measured(samples, "copying")?;
            probe.copy.push(CopyPoint { threads: *threads as u32, buffer_bytes: copy_bytes as u64, bytes_s });
        }
        let places = threads.iter().flat_map(|t| FORMATS.iter().map(move |format| (*t, *format)));
        for ((threads, precision), samples) in places.zip(arithmetic) {
            let ops_s = samples.into_iter().collect::<Option<Vec<f64>>>();
            let ops_s = ops_s.map(|samples| measured(samples, "arithmetic")).transpose()?;
            probe.arithmetic.push(ArithmeticPoint { threads: threads as u32, precision, ops_s });
        }
        Ok(probe)
    }
}

fn measured(samples: Vec<f64>, what: &str) -> Result<Measured, EvalError> {
    Measured::of(samples).filter(|m| m.median > 0.0).ok_or_else(|| EvalError::Machine {
        what: format!("the probe of {what} brought a sample that is no rate"),
        hint: "run `crit probe` again; if it stays, the machine's clock is broken".into(),
    })
}

fn spread_complaint(probe: &Probe) -> Option<String> {
    // Sizes near a cache's own are unsteady on any machine with neighbours; the middle of each level is not.
    let reads = probe.by_level().into_iter().map(|p| {
        let what = format!("reading {} from {} with {} threads", mib(p.working_set_bytes), p.level.label(), p.threads);
        (p.bytes_s.spread_share, what)
    });
    let rates = probe.arithmetic.iter().filter_map(|p| {
        Some((p.ops_s.as_ref()?.spread_share, format!("{:?} arithmetic with {} threads", p.precision, p.threads)))
    });
    let (spread, what) = reads.chain(rates).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (spread > SPREAD_LIMIT).then(|| format!("{what} spreads by {:.0} %", spread * 100.0))
}

fn mib(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

impl Probe {
    /// The limits of up to `threads` threads: at each working set and in each format the best any number of threads up
    /// to that reached, because more threads are sometimes slower and an engine may leave some idle.
    pub fn limits(&self, threads: u32) -> Limits {
        let mut limits = Limits { threads, unstable: self.unstable.clone(), ..Limits::default() };
        let least = self.read.iter().map(|p| p.threads).min().unwrap_or(1);
        let usable = |t: u32| t <= threads.max(least);
        for point in self.read.iter().filter(|p| usable(p.threads)) {
            let limit = ReadLimit {
                working_set_bytes: point.working_set_bytes,
                level: self.machine.level(point.working_set_bytes, threads),
                bytes_s: point.bytes_s.median,
                above_share: point.bytes_s.above_share(),
            };
            match limits.read.iter_mut().find(|known| known.working_set_bytes == limit.working_set_bytes) {
                Some(known) if known.bytes_s < limit.bytes_s => *known = limit,
                Some(_) => {}
                None => limits.read.push(limit),
            }
        }
        limits.read.sort_by_key(|limit| limit.working_set_bytes);
        for point in self.arithmetic.iter().filter(|p| usable(p.threads)) {
            let Some(ops_s) = &point.ops_s else { continue };
            let limit =
                ArithmeticLimit { precision: point.precision, ops_s: ops_s.median, above_share: ops_s.above_share() };
            match limits.arithmetic.iter_mut().find(|known| known.precision == limit.precision) {
                Some(known) if known.ops_s < limit.ops_s => *known = limit,
                Some(_) => {}
                None => limits.arithmetic.push(limit),
            }
        }
        limits
    }

    /// Read bandwidth of each memory level with the most threads probed: that of the largest working set it holds
    /// with room to spare, for people.
    pub fn by_level(&self) -> Vec<&ReadPoint> {
        let most = self.read.iter().map(|p| p.threads).max().unwrap_or(1);
        [MemoryLevel::L1, MemoryLevel::L2, MemoryLevel::L3, MemoryLevel::Dram]
            .into_iter()
            .filter_map(|level| {
                let here: Vec<&ReadPoint> =
                    self.read.iter().filter(|p| p.threads == most && p.level == level).collect();
                // A cache's own middle; main memory at its largest set, farthest from the caches.
                if level == MemoryLevel::Dram { here.last().copied() } else { here.get(here.len() / 2).copied() }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that reads 100 GB/s from caches of up to 1 MiB and 10 GB/s else, a thread; no f16, no int8.
    struct Toy {
        jitter: f64,
        calls: u64,
    }

    impl Toy {
        fn bend(&mut self, value: f64) -> f64 {
            self.calls += 1;
            value * (1.0 + self.jitter * ((self.calls % 5) as f64 - 2.0))
        }
    }

    impl Primitives for Toy {
        fn read_bytes_s(&mut self, bytes: usize, threads: usize, _: Duration) -> f64 {
            let rate = if bytes <= 1 << 20 { 100e9 } else { 10e9 };
            // Two threads are slower in main memory than one.
            self.bend(if bytes > 1 << 20 && threads > 1 { rate * 0.9 } else { rate * threads as f64 })
        }

        fn copy_bytes_s(&mut self, _: usize, _: usize, _: Duration) -> f64 {
            self.bend(8e9)
        }

        fn ops_s(&mut self, precision: Precision, threads: usize, _: Duration) -> Option<f64> {
            let rate = match precision {
                Precision::F32 => 50e9,
                Precision::Bf16 => 100e9,
                _ => return None,
            };
            Some(self.bend(rate * threads as f64))
        }
    }

    fn toy(jitter: f64) -> Probe {
        let options = ProbeOptions { threads: vec![1, 2], working_sets_bytes: vec![3 << 20], ..ProbeOptions::quick() };
        probe(&mut Toy { jitter, calls: 0 }, &options, &|_| {}).unwrap()
    }

    #[test]
    fn limits_are_the_best_of_up_to_so_many_threads() {
        let probe = toy(0.0);
        let (one, two) = (probe.limits(1), probe.limits(2));
        assert_eq!(one.read_limit(1 << 20).unwrap().bytes_s, 100e9);
        assert_eq!(two.read_limit(1 << 20).unwrap().bytes_s, 200e9);
        assert_eq!(two.read_limit(1 << 40).unwrap().bytes_s, 10e9);
        assert_eq!(two.arithmetic_limit(Precision::Bf16).unwrap().ops_s, 200e9);
        // No instructions for 8-bit integers: computed in f32.
        assert_eq!(one.arithmetic_limit(Precision::Int8).unwrap().ops_s, 50e9);
        assert!(probe.read.iter().any(|p| p.working_set_bytes == 3 << 20));
    }

    #[test]
    fn samples_that_spread_make_the_machine_unstable() {
        let complaint = |probe: &Probe| probe.unstable.iter().any(|reason| reason.contains("spreads by"));
        assert!(!complaint(&toy(0.0)));
        let wild = toy(0.1);
        assert!(complaint(&wild) && !wild.limits(1).is_stable());
    }

    #[test]
    fn a_sample_that_is_no_rate_is_an_error() {
        let options = ProbeOptions::quick();
        assert!(probe(&mut Toy { jitter: f64::NAN, calls: 0 }, &options, &|_| {}).is_err());
    }
}
