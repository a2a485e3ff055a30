//! The kernel workbench: is a kernel right, and how far is it from what could be.
//!
//! A [`Problem`] is an op on plain f32 slices with its reference in f64; a kernel is anything that fills its output
//! ([`Kernel`]). [`check`] asks whether it is right, on shapes and contents it cannot know; [`bench`] times it against
//! yardsticks and the machine's floor, checking the very calls it times. A kernel written in C runs in a process of its own
//! ([`process`]), so that it can neither reach the evaluator's clock nor its memory. [`providers`] lists where kernels can
//! be had.

pub mod base;
pub mod bench;
pub mod check;
pub mod problem;
pub mod process;
pub mod providers;

pub use bench::{Bench, BenchOptions, bench};
pub use check::{CheckOptions, Checked, check};
pub use problem::{PROBLEMS, Problem, problem};

use crate::clock::Clock;
use crate::error::EvalError;

/// Something that computes a problem.
pub trait Kernel {
    /// Its name.
    fn name(&self) -> &str;

    /// Fills `output` from `inputs` for `shape`.
    ///
    /// # Errors
    /// It cannot run, or its process ended.
    fn run(&mut self, shape: &[usize], inputs: &[Vec<f32>], output: &mut [f32]) -> Result<(), EvalError>;

    /// Brings inputs to where the kernel finds them, before the clock runs; in this process there is nothing to bring.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    fn prepare(&mut self, shape: &[usize], inputs: &[Vec<f32>], output_len: usize) -> Result<(), EvalError> {
        let _ = (shape, inputs, output_len);
        Ok(())
    }

    /// Runs on what was prepared; the seconds it took.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    fn timed(
        &mut self,
        shape: &[usize],
        inputs: &[Vec<f32>],
        output: &mut [f32],
        clock: &dyn Clock,
    ) -> Result<f64, EvalError> {
        let start = clock.now_s();
        self.run(shape, inputs, output)?;
        Ok(clock.now_s() - start)
    }
}

/// Number formats a kernel may declare to compute in: its errors are judged by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Declared {
    /// 24 bits of mantissa throughout.
    #[default]
    F32,
    /// Inputs rounded to 11 bits of mantissa, sums in f32.
    F16,
    /// Inputs rounded to 8 bits of mantissa, sums in f32.
    Bf16,
}

impl Declared {
    /// Half a unit in the last place of its inputs, relative.
    pub const fn unit(self) -> f64 {
        match self {
            Self::F32 => 5.960_464_5e-8,
            Self::F16 => 4.882_812_5e-4,
            Self::Bf16 => 3.906_25e-3,
        }
    }
}
