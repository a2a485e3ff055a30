//! How fast is a kernel: against yardsticks and the machine's floor, with cold and with warm caches.
//!
//! Every timed call is also checked: several contents come in random order and each output's bits must be those of a
//! checked call, so a kernel that is honest while it is looked at and not while it is timed is found. Contents never seen
//! come among known ones: one that remembers is faster on the known.

use super::check::bits;
use super::problem::{Content, Problem};
use super::{Declared, Kernel};
use crate::clock::Clock;
use crate::error::EvalError;
use crate::limits::Limits;
use crate::rng::Rng;
use crate::stats::{Measured, median};
use crit_core::model::program::Precision;
use serde::{Deserialize, Serialize};

/// Contents known beforehand.
const KNOWN: usize = 4;
/// Known contents faster than fresh ones by this factor are remembered.
const REMEMBERS: f64 = 1.5;
/// Bytes written between cold calls: more than common last-level caches hold.
const FLUSH_BYTES: usize = 96 << 20;
/// A yardstick this much slower than the best one is no yardstick.
const WEAK: f64 = 1.5;

/// How to time.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// The shape.
    pub shape: Vec<usize>,
    /// What the kernel says it computes in.
    pub declared: Declared,
    /// Timed calls, cold and warm each.
    pub calls: usize,
    /// Whether caches are emptied between calls; the tests' clock needs none.
    pub flush: bool,
    /// Seed of contents and order.
    pub seed: u64,
}

/// A kernel's times on a shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Times {
    /// Its name.
    pub kernel: String,
    /// Microseconds with cold caches.
    pub cold_us: Measured,
    /// Microseconds with warm caches.
    pub warm_us: Measured,
}

/// A kernel beside its yardsticks and floor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Bench {
    /// The shape.
    pub shape: Vec<usize>,
    /// The kernel.
    pub kernel: Times,
    /// Why its times do not count; empty if they do.
    pub doubts: Vec<String>,
    /// Other kernels for the same, the fastest first.
    pub yardsticks: Vec<Times>,
    /// Yardsticks that are far from the best one: beating them says nothing.
    pub weak: Vec<String>,
    /// Speed over the best yardstick's, cold: above 1 is faster.
    pub against_best: Option<f64>,
    /// The least time this machine allows, microseconds, cold.
    pub floor_us: Option<f64>,
    /// The floor over the cold time.
    pub share: Option<f64>,
}

/// Times `kernel` and `yardsticks`.
///
/// # Errors
/// A kernel cannot run.
pub fn bench(
    problem: &Problem,
    kernel: &mut dyn Kernel,
    yardsticks: &mut [Box<dyn Kernel>],
    limits: Option<&Limits>,
    clock: &dyn Clock,
    options: &BenchOptions,
) -> Result<Bench, EvalError> {
    let mut timer = Timer { problem, clock, options, flush: Vec::new() };
    let (times, mut doubts) = timer.time(kernel)?;
    let mut others = Vec::new();
    for yardstick in yardsticks {
        others.push(timer.time(yardstick.as_mut())?.0);
    }
    others.sort_by(|a, b| a.cold_us.median.total_cmp(&b.cold_us.median));
    let best = others.first().map(|best| best.cold_us.median);
    let weak = others.iter().filter(|one| best.is_some_and(|best| one.cold_us.median > WEAK * best));
    let weak = weak.map(|one| one.kernel.clone()).collect();
    let floor = limits.and_then(|limits| floor(problem, options, limits));
    let share = floor.map(|(floor_us, _)| floor_us / times.cold_us.median);
    if let (Some(share), Some((_, above))) = (share, floor)
        && share > 1.0 + above
    {
        doubts.push(format!("{:.0} % of what the machine can do: no kernel is that fast", share * 100.0));
    }
    Ok(Bench {
        shape: options.shape.clone(),
        against_best: best.map(|best| best / times.cold_us.median),
        kernel: times,
        doubts,
        yardsticks: others,
        weak,
        floor_us: floor.map(|(floor_us, _)| floor_us),
        share,
    })
}

/// The least time of a cold call, microseconds, and how far above its median the limit that binds was seen.
fn floor(problem: &Problem, options: &BenchOptions, limits: &Limits) -> Option<(f64, f64)> {
    let bytes = problem.bytes(&options.shape);
    // Cold: everything comes from main memory, the largest working set probed.
    let read = limits.read.last()?;
    let precision = match options.declared {
        Declared::F32 => Precision::F32,
        Declared::F16 => Precision::F16,
        Declared::Bf16 => Precision::Bf16,
    };
    let compute = limits.arithmetic_limit(precision)?;
    let (memory_s, compute_s) = (bytes as f64 / read.bytes_s, (problem.flops)(&options.shape) as f64 / compute.ops_s);
    let above = if memory_s > compute_s { read.above_share } else { compute.above_share };
    Some((memory_s.max(compute_s) * 1e6, above))
}

struct Timer<'a> {
    problem: &'a Problem,
    clock: &'a dyn Clock,
    options: &'a BenchOptions,
    flush: Vec<u64>,
}

impl Timer<'_> {
    fn time(&mut self, kernel: &mut dyn Kernel) -> Result<(Times, Vec<String>), EvalError> {
        let (shape, mut rng) = (&self.options.shape, Rng::new(self.options.seed));
        let known: Vec<Vec<Vec<f32>>> =
            (0..KNOWN).map(|_| self.problem.content(shape, Content::Normal, &mut rng)).collect();
        let mut output = vec![f32::NAN; (self.problem.output)(shape)];
        let mut expected = Vec::new();
        for inputs in &known {
            output.fill(f32::NAN);
            kernel.run(shape, inputs, &mut output)?;
            expected.push(bits(&output));
        }
        let (mut cold, mut fresh, mut warm, mut doubts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for call in 0..2 * self.options.calls {
            let new = call % 2 == 1;
            let i = rng.below(KNOWN);
            let drawn = new.then(|| self.problem.content(shape, Content::Normal, &mut rng));
            let inputs = drawn.as_ref().unwrap_or(&known[i]);
            let seconds = self.one(kernel, inputs, &mut output, true)?;
            if new { &mut fresh } else { &mut cold }.push(seconds * 1e6);
            if !new && bits(&output) != expected[i] {
                doubt(&mut doubts, "a timed call gives other bits than a checked one");
            } else if new && !right(self.problem, shape, inputs, &output, self.options.declared) {
                doubt(&mut doubts, "a timed call on fresh inputs is wrong");
            }
        }
        for _ in 0..self.options.calls {
            let i = rng.below(KNOWN);
            self.one(kernel, &known[i], &mut output, false)?;
            warm.push(self.one(kernel, &known[i], &mut output, false)? * 1e6);
            if bits(&output) != expected[i] {
                doubt(&mut doubts, "a timed call gives other bits than a checked one");
            }
        }
        let (known_us, fresh_us) = (median(&cold).unwrap_or(0.0), median(&fresh).unwrap_or(0.0));
        if fresh_us > REMEMBERS * known_us {
            doubt(&mut doubts, "it is faster on inputs it has seen: it remembers answers");
        }
        // What nobody has seen is what a kernel meets.
        let none = || EvalError::Machine { what: "no call was timed".into(), hint: "ask for more calls".into() };
        let (cold_us, warm_us) = (Measured::of(fresh).ok_or_else(none)?, Measured::of(warm).ok_or_else(none)?);
        Ok((Times { kernel: kernel.name().into(), cold_us, warm_us }, doubts))
    }

    fn one(
        &mut self,
        kernel: &mut dyn Kernel,
        inputs: &[Vec<f32>],
        output: &mut [f32],
        cold: bool,
    ) -> Result<f64, EvalError> {
        output.fill(f32::NAN);
        kernel.prepare(&self.options.shape, inputs, output.len())?;
        if cold {
            self.empty_caches();
        }
        kernel.timed(&self.options.shape, inputs, output, self.clock)
    }

    fn empty_caches(&mut self) {
        if self.options.flush {
            self.flush.resize(FLUSH_BYTES / 8, 0);
            self.flush.iter_mut().for_each(|word| *word = word.wrapping_add(1));
            std::hint::black_box(&self.flush);
        }
    }
}

fn doubt(doubts: &mut Vec<String>, what: &str) {
    if !doubts.iter().any(|known| known == what) {
        doubts.push(what.into());
    }
}

/// A look at some elements of an output: all of them would take longer than what is timed.
fn right(problem: &Problem, shape: &[usize], inputs: &[Vec<f32>], output: &[f32], declared: Declared) -> bool {
    if output.iter().any(|y| y.is_nan()) {
        return false;
    }
    // For a product a few rows of x are enough; other problems are cheap.
    let (shape, inputs, output) = match problem.name {
        "linear" => {
            let (rows, n, k) = (shape[0].min(1), shape[1], shape[2]);
            (vec![rows, n, k], vec![inputs[0][..rows * k].to_vec(), inputs[1].clone()], &output[..rows * n])
        }
        _ => (shape.to_vec(), inputs.to_vec(), output),
    };
    let terms = (problem.terms)(&shape).max(1) as f64;
    let most = 32.0 * (2.0 * declared.unit() / terms.sqrt() + 4.0 * Declared::F32.unit());
    let reference = (problem.reference)(&shape, &inputs);
    output.iter().zip(&reference).all(|(y, (r, size))| ((f64::from(*y) - r) / size.max(1e-30)).abs() <= most)
}
