//! What the machine can do at best: the timed loops behind the limits.
//!
//! Each loop is written to be bound by the one thing it measures: reading by loads over a working set whose content is
//! random and whose sum is used, arithmetic by independent chains that stay in registers. Rates are taken thread by
//! thread over each thread's own time and summed, so that threads starting late cost nothing.
//!
//! How often to repeat, which sizes to choose and what to make of the results is left to `crit-eval`.

mod arithmetic;
mod read;

use crate::cpu::Isa;
use crit_core::model::program::Precision;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// A cache line. Loads that cross lines cost two, so buffers are made of these.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

const LINE_BYTES: usize = size_of::<Line>();

/// The loops, with their buffers.
pub struct MachineProbe {
    isa: Isa,
    source: Vec<Line>,
    target: Vec<Line>,
}

impl Default for MachineProbe {
    fn default() -> Self {
        Self::new()
    }
}

impl MachineProbe {
    /// For this machine.
    pub fn new() -> Self {
        Self::with_isa(Isa::detect())
    }

    /// With instructions of at most `isa`.
    pub fn with_isa(isa: Isa) -> Self {
        Self { isa, source: Vec::new(), target: Vec::new() }
    }

    /// Reads a working set over and over with so many threads for about `time`; answers bytes a second.
    pub fn read_bytes_s(&mut self, working_set_bytes: usize, threads: usize, time: Duration) -> f64 {
        let lines = (working_set_bytes / LINE_BYTES).max(threads.max(1) * 8);
        grow(&mut self.source, lines);
        let (isa, set) = (self.isa, &self.source[..lines]);
        rate(threads, time, |thread| {
            let part = part(set, thread, threads);
            let pass = move || std::hint::black_box(read::checksum(isa, std::hint::black_box(part)));
            (part.len() * LINE_BYTES, pass)
        })
    }

    /// Copies between two buffers of this size with so many threads for about `time`; answers bytes read plus bytes
    /// written a second.
    pub fn copy_bytes_s(&mut self, bytes: usize, threads: usize, time: Duration) -> f64 {
        let lines = (bytes / LINE_BYTES).max(threads.max(1) * 8);
        grow(&mut self.source, lines);
        grow(&mut self.target, lines);
        let part_lines = lines.div_ceil(threads.max(1));
        let source = &self.source[..lines];
        let parts: Vec<Mutex<(&mut [Line], &[Line])>> =
            self.target[..lines].chunks_mut(part_lines).zip(source.chunks(part_lines)).map(Mutex::new).collect();
        rate(threads, time, |thread| {
            let part = &parts[thread.min(parts.len() - 1)];
            let bytes = 2 * LINE_BYTES * part.lock().map_or(0, |part| part.0.len());
            let pass = move || {
                if let Ok(mut part) = part.lock() {
                    let (to, from) = &mut *part;
                    to.copy_from_slice(std::hint::black_box(from));
                }
                0
            };
            (bytes, pass)
        })
    }

    /// Multiplies and adds in a number format with so many threads for about `time`; answers operations a second, a
    /// multiply-add being two, or `None` if this machine has no instructions for the format.
    pub fn ops_s(&mut self, precision: Precision, threads: usize, time: Duration) -> Option<f64> {
        let (isa, ops) = (self.isa, arithmetic::ops(self.isa, precision)?);
        Some(rate(threads, time, |_| (ops, move || arithmetic::run(isa, precision))))
    }
}

/// Part of a working set for one of so many threads.
fn part<T>(set: &[T], thread: usize, threads: usize) -> &[T] {
    let share = |n: usize| set.len() * n / threads.max(1);
    &set[share(thread)..share(thread + 1)]
}

/// Grows a buffer to at least so many lines of random bits, in huge pages where the system grants them: weights of a
/// fast engine lie in such pages, and the limit must not be below what they allow.
fn grow(buffer: &mut Vec<Line>, lines: usize) {
    if buffer.len() >= lines {
        return;
    }
    let mut fresh: Vec<Line> = Vec::with_capacity(lines);
    advise_huge_pages(fresh.as_mut_ptr().cast(), lines * LINE_BYTES);
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    fresh.extend((0..lines).map(|_| Line(std::array::from_fn(|_| random()))));
    *buffer = fresh;
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: *mut libc::c_void, bytes: usize) {
    const PAGE: usize = 4096;
    let first = (start as usize).next_multiple_of(PAGE);
    let end = (start as usize + bytes) / PAGE * PAGE;
    if end > first {
        // SAFETY: the range lies within an allocation this module owns and covers whole pages of it; the advice changes
        // how the kernel backs them, never their content. A refusal only costs speed.
        unsafe {
            libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: *mut libc::c_void, _: usize) {}

/// A batch of passes between two looks at the clock takes about this long, so that looking costs nothing.
const BATCH: Duration = Duration::from_micros(200);

/// Runs one loop a thread for about `time` each and sums the threads' rates. `make` gives, for a thread, what a pass
/// amounts to and the pass.
fn rate<P: FnMut() -> u64>(threads: usize, time: Duration, make: impl Fn(usize) -> (usize, P) + Sync) -> f64 {
    let threads = threads.max(1);
    let start = Barrier::new(threads);
    let one = |thread: usize| {
        let (amount, mut pass) = make(thread);
        let batch = calibrate(&mut pass);
        start.wait();
        let begin = Instant::now();
        let mut passes = 0u64;
        loop {
            for _ in 0..batch {
                std::hint::black_box(pass());
            }
            passes += batch;
            let elapsed = begin.elapsed();
            if elapsed >= time {
                return amount as f64 * passes as f64 / elapsed.as_secs_f64();
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mine = one(0);
        mine + others.into_iter().map(|other| other.join().unwrap_or(0.0)).sum::<f64>()
    })
}

/// How many passes make a batch; warms the caches on the way.
fn calibrate(pass: &mut impl FnMut() -> u64) -> u64 {
    let mut batch = 1u64;
    loop {
        let begin = Instant::now();
        for _ in 0..batch {
            std::hint::black_box(pass());
        }
        if begin.elapsed() >= BATCH / 2 {
            return batch;
        }
        batch *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn every_instruction_set_reads_every_word() {
        let mut buffer = Vec::new();
        grow(&mut buffer, 125);
        for isa in Isa::testable() {
            for lines in [0, 1, 4, 8, 9, 125] {
                let expected = buffer[..lines].iter().flat_map(|line| line.0).fold(0, |sum, word| sum ^ word);
                assert_eq!(read::checksum(isa, &buffer[..lines]), expected, "{} {lines}", isa.name());
            }
        }
    }

    #[test]
    fn parts_cover_the_set_once() {
        let set: Vec<u64> = (0..80).collect();
        let all: Vec<u64> = (0..3).flat_map(|thread| part(&set, thread, 3).to_vec()).collect();
        assert_eq!(all, set);
    }

    #[test]
    fn rates_are_rates() {
        let mut probe = MachineProbe::new();
        // The slowest machine of the last twenty years reads a cache at 1 GB/s; none reads at 10 TB/s with two threads.
        let plausible = |bytes_s: f64| (1e9..1e13).contains(&bytes_s);
        assert!(plausible(probe.read_bytes_s(16 << 10, 1, SHORT)));
        assert!(plausible(probe.read_bytes_s(8 << 20, 2, SHORT)));
        assert!(plausible(probe.copy_bytes_s(4 << 20, 2, SHORT)));
        let f32_ops = probe.ops_s(Precision::F32, 1, SHORT).unwrap();
        assert!((1e8..1e12).contains(&f32_ops), "{f32_ops}");
        assert_eq!(probe.ops_s(Precision::Fp8, 1, SHORT), None);
    }

    #[test]
    fn a_pass_of_arithmetic_takes_longer_the_more_it_says_it_does() {
        // A chain the compiler removed would show as a rate no machine has: 64 lanes, two pipes, 8 GHz, two operations.
        for isa in Isa::testable() {
            let mut probe = MachineProbe::with_isa(isa);
            for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
                if let Some(ops_s) = probe.ops_s(precision, 1, SHORT) {
                    assert!(ops_s < 64.0 * 2.0 * 8e9 * 2.0, "{} {precision:?}: {ops_s}", isa.name());
                }
            }
        }
    }
}
