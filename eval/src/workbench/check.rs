//! Is a kernel right: on the model's shapes and their neighbours, on contents drawn now, call after call.
//!
//! Errors are judged element by element against the f64 reference, as shares of the terms that were summed up, by their
//! root mean square and their largest: what the declared number format explains passes, a hidden coarser one does not.
//! Around each call stands what kernels were seen to get away with elsewhere: the output is poisoned before, its bits must
//! be the same on repeat and stay after the next call, the inputs must stay as they were, and the same buffers come again
//! with other content.

use super::problem::{Content, Problem};
use super::{Declared, Kernel};
use crate::error::EvalError;
use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Largest root mean square error, in units of what the format explains: rounding of inputs averages out over the terms of a
/// sum, and summing in f32 adds a few units of its own.
const RMS_UNITS: f64 = 4.0;
/// Largest single error, in the same: the largest of a million normal numbers lies below six deviations; sums in blocks and
/// approximate exponentials need some more.
const LARGEST_UNITS: f64 = 32.0;

/// How to check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// Shapes the kernel is for.
    pub shapes: Vec<Vec<usize>>,
    /// What it says it computes in.
    pub declared: Declared,
    /// Seed of contents and order, drawn after the kernel was fixed.
    pub seed: u64,
    /// Largest number of operations of a shape tried: larger ones are cut along their first axis.
    pub most_flops: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Checked {
    /// The kernel.
    pub kernel: String,
    /// What is wrong; empty for a kernel that is right.
    pub complaints: Vec<String>,
    /// Shapes tried, neighbours and hidden ones included.
    pub shapes: Vec<Vec<usize>>,
    /// Calls made.
    pub calls: u64,
    /// Largest root mean square error of a call, as a share of the terms' magnitudes.
    pub rms_error: f64,
    /// What the declared format explains of it.
    pub explained: f64,
}

/// Checks `kernel` on `problem`.
///
/// # Errors
/// The kernel cannot run.
pub fn check(problem: &Problem, kernel: &mut dyn Kernel, options: &CheckOptions) -> Result<Checked, EvalError> {
    let mut rng = Rng::new(options.seed);
    let shapes = shapes(problem, options, &mut rng);
    let mut checker = Checker { problem, kernel, options, complaints: Vec::new(), calls: 0, rms: 0.0, last: None };
    let mut order: Vec<(usize, Content)> = (0..shapes.len()).flat_map(|i| Content::ALL.map(|kind| (i, kind))).collect();
    shuffle(&mut order, &mut rng);
    for (i, kind) in order {
        checker.shape(&shapes[i], kind, &mut rng)?;
        // Enough is known of a kernel that is wrong in several ways.
        if checker.complaints.len() >= 8 {
            break;
        }
    }
    checker.settled(None);
    let explained = shapes.iter().map(|shape| explained(problem, shape, options.declared)).fold(0.0, f64::max);
    let (complaints, calls, rms_error) = (checker.complaints, checker.calls, checker.rms);
    Ok(Checked { kernel: kernel.name().into(), complaints, shapes, calls, rms_error, explained })
}

/// The shapes wanted, their neighbours along each axis, and some nobody named.
fn shapes(problem: &Problem, options: &CheckOptions, rng: &mut Rng) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut add = |shape: Vec<usize>| {
        if shape.iter().all(|n| *n > 0) && !all.contains(&shape) {
            all.push(shape);
        }
    };
    for shape in &options.shapes {
        let mut shape = shape.clone();
        while (problem.flops)(&shape) > options.most_flops && shape.iter().any(|n| *n > 1) {
            let longest = (0..shape.len()).max_by_key(|axis| shape[*axis]).unwrap_or(0);
            shape[longest] = shape[longest].div_ceil(2);
        }
        add(shape.clone());
        for axis in 0..shape.len() {
            for n in [shape[axis] - 1, shape[axis] + 1] {
                let mut neighbour = shape.clone();
                neighbour[axis] = n;
                add(neighbour);
            }
        }
    }
    for _ in 0..3 {
        add(problem.axes.iter().map(|_| 1 + rng.below(70)).collect());
    }
    all
}

fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i + 1));
    }
}

/// Root mean square error the format explains, as a share of the terms' magnitudes.
fn explained(problem: &Problem, shape: &[usize], declared: Declared) -> f64 {
    let terms = (problem.terms)(shape).max(1) as f64;
    // Independent roundings of the inputs average out; sums in f32 do not, in the worst order.
    2.0 * declared.unit() / terms.sqrt() + 4.0 * Declared::F32.unit()
}

/// A call's output and its fingerprint when it returned.
struct Last {
    output: Vec<f32>,
    bits: u64,
}

struct Checker<'a> {
    problem: &'a Problem,
    kernel: &'a mut dyn Kernel,
    options: &'a CheckOptions,
    complaints: Vec<String>,
    calls: u64,
    rms: f64,
    last: Option<Last>,
}

impl Checker<'_> {
    fn shape(&mut self, shape: &[usize], kind: Content, rng: &mut Rng) -> Result<(), EvalError> {
        let mut inputs = self.problem.content(shape, kind, rng);
        // Twice in the same buffers: what remembers addresses gives the first answer again.
        for round in 0..2 {
            if round > 0 {
                let fresh = self.problem.content(shape, kind, rng);
                inputs.iter_mut().zip(fresh).for_each(|(old, new)| old.copy_from_slice(&new));
            }
            self.call(shape, &inputs, &format!("{kind:?}").to_lowercase(), 1 + rng.below(3))?;
        }
        Ok(())
    }

    fn call(&mut self, shape: &[usize], inputs: &[Vec<f32>], kind: &str, times: usize) -> Result<(), EvalError> {
        let before: Vec<u64> = inputs.iter().map(|input| bits(input)).collect();
        let mut first = None;
        for _ in 0..times {
            let mut output = vec![f32::NAN; (self.problem.output)(shape)];
            self.kernel.run(shape, inputs, &mut output)?;
            self.calls += 1;
            let now = bits(&output);
            self.settled(Some(Last { output: output.clone(), bits: now }));
            if first.get_or_insert(now) != &now {
                self.complain(shape, kind, "the same call twice gives other bits");
            }
            if inputs.iter().map(|input| bits(input)).ne(before.iter().copied()) {
                self.complain(shape, kind, "it changes its inputs");
            }
            self.judge(shape, inputs, kind, &output);
        }
        Ok(())
    }

    /// Looks whether the output of the call before is still what it was when it returned.
    fn settled(&mut self, next: Option<Last>) {
        if let Some(last) = std::mem::replace(&mut self.last, next)
            && bits(&last.output) != last.bits
        {
            self.complaints.push("it writes an output after it has returned it".into());
        }
    }

    fn judge(&mut self, shape: &[usize], inputs: &[Vec<f32>], kind: &str, output: &[f32]) {
        if output.iter().any(|y| y.is_nan()) {
            self.complain(shape, kind, "it leaves output unwritten, or writes NaN");
            return;
        }
        let reference = (self.problem.reference)(shape, inputs);
        let errors: Vec<f64> =
            output.iter().zip(&reference).map(|(y, (r, size))| (f64::from(*y) - r) / size.max(1e-30)).collect();
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len().max(1) as f64).sqrt();
        let largest = errors.iter().fold(0.0f64, |most, e| most.max(e.abs()));
        let explained = explained(self.problem, shape, self.options.declared);
        self.rms = self.rms.max(rms);
        if rms.is_nan() || rms > RMS_UNITS * explained || largest > LARGEST_UNITS * explained {
            let what = format!(
                "errors of {rms:.1e} (largest {largest:.1e}) where {:?} explains {explained:.1e}",
                self.options.declared
            );
            self.complain(shape, kind, &what);
        }
    }

    fn complain(&mut self, shape: &[usize], kind: &str, what: &str) {
        let complaint = format!("{what} (shape {shape:?}, {kind} inputs)");
        // One of a kind: what stands in front of its figures.
        let sort = what.split(|c: char| c.is_ascii_digit()).next().unwrap_or(what);
        if !self.complaints.iter().any(|known| known.starts_with(sort)) {
            self.complaints.push(complaint);
        }
    }
}

/// A fingerprint of bits (FNV-1a over words): equal for equal bits, NaN included.
pub(super) fn bits(values: &[f32]) -> u64 {
    values
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, value| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01B3))
}
