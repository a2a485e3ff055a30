//! What a quality mode demands, and the verdict.
//!
//! `speed` accepts what the coarsest formats in common use do to a model (2-bit quantisations of an 8B model stand at a
//! mean divergence of 0.40 to 0.45); `preserve` accepts what good 4 to 8 bit formats do (0.03 to 0.05) and no confident
//! change of mind. Each demand holds on every path by itself: a fault on one path must not drown in the mean of all, nor
//! a fault at a few rows of a path in the mean of that path, which is why a path is also held to the prompt path's
//! divergence over the same rows.

use super::reduce::PathResult;
use crate::ceiling::FastestAllowed;
use crit_core::model::program::Precision;
use serde::{Deserialize, Serialize};

/// How much a candidate may deviate from the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Speed first: mean divergence up to 0.4 on every path.
    Speed,
    /// The model's behaviour first: mean divergence up to 0.05, perplexity up to 5 % higher, hard flips up to 0.2 %.
    Preserve,
}

/// What a mode demands of every path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Demands {
    /// Most mean KL(reference ‖ candidate), nats.
    pub mean_kld: f64,
    /// Most mean divergence of a path against the prompt path's over the same rows: a factor, and nats on top. The
    /// factor leaves room for other kernels at other widths; the nats for engines so close to the reference that a
    /// ratio says nothing.
    pub over_prompt: (f64, f64),
    /// Most growth of perplexity, as a share.
    pub ppl_growth: f64,
    /// Most divergence of 99.9 % of the rows, nats: a fault at one row in five hundred drowns in every mean.
    pub p999: f64,
    /// Most hard flips among rows the reference is sure of, as a share.
    pub sure_flip_share: f64,
}

impl Mode {
    /// The mode's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Speed => "speed",
            Self::Preserve => "preserve",
        }
    }

    /// What it demands.
    pub const fn demands(self) -> Demands {
        match self {
            Self::Speed => {
                Demands { mean_kld: 0.4, over_prompt: (1.5, 0.05), ppl_growth: 0.5, p999: 8.0, sure_flip_share: 0.03 }
            }
            Self::Preserve => Demands {
                mean_kld: 0.05,
                over_prompt: (1.25, 0.01),
                ppl_growth: 0.05,
                p999: 1.0,
                sure_flip_share: 0.002,
            },
        }
    }

    /// The coarsest weights and products known to pass the mode on common models: 4-bit blocks with their scales in
    /// `speed` (coarser ones pass on large models only), 8-bit blocks in `preserve`; products of 8-bit integers in both.
    pub const fn fastest_allowed(self) -> FastestAllowed {
        let weight_bits_milli = match self {
            Self::Speed => 4_500,
            Self::Preserve => 8_500,
        };
        FastestAllowed { weight_bits_milli, precision: Precision::Int8 }
    }
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every demand holds on every path.
    Pass,
    /// A demand does not hold; the reasons say which and where.
    Fail,
    /// The measurement cannot be trusted: the evaluator's checks of itself failed.
    Invalid,
}

impl Verdict {
    /// As people read it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Invalid => "INVALID",
        }
    }
}

/// Largest |z| of the evaluator's check of itself: one false alarm in 16,000 paths.
pub const SELF_CHECK_Z: f64 = 4.0;

/// Judges the paths of a candidate. `spread` is how far the reference stands from itself: no engine is held closer.
pub fn judge(mode: Mode, paths: &[PathResult], spread: f64) -> (Verdict, Vec<String>) {
    let invalid: Vec<String> = paths.iter().flat_map(doubts).collect();
    if !invalid.is_empty() || paths.is_empty() {
        let nothing = "no path was measured".to_string();
        return (Verdict::Invalid, if paths.is_empty() { vec![nothing] } else { invalid });
    }
    let reasons: Vec<String> = paths.iter().flat_map(|path| complaints(mode, path, spread)).collect();
    (if reasons.is_empty() { Verdict::Pass } else { Verdict::Fail }, reasons)
}

/// Why a path's numbers cannot be trusted.
fn doubts(path: &PathResult) -> Vec<String> {
    let mut doubts = Vec::new();
    if path.self_check_z.abs() > SELF_CHECK_Z {
        doubts.push(format!("{}: the evaluator's own sums disagree (z = {:.1})", path.path, path.self_check_z));
    }
    if path.shift_gain.is_some_and(|gain| gain <= 0.0) && path.rows >= 256 {
        doubts.push(format!(
            "{}: the reference predicts the token after next better than the next one, so rows and tokens are not \
             aligned or the reference does not know such text",
            path.path
        ));
    }
    doubts
}

fn complaints(mode: Mode, path: &PathResult, spread: f64) -> Vec<String> {
    let demands = mode.demands();
    let mut complaints = Vec::new();
    if path.bad_rows > 0 {
        complaints.push(format!(
            "{}: {} of {} rows are no distribution (NaN, infinite or a token without a chance)",
            path.path, path.bad_rows, path.rows
        ));
    }
    if path.unnormalised_rows > 0 {
        complaints.push(format!("{}: probabilities of {} rows do not sum to 1", path.path, path.unnormalised_rows));
    }
    let mean = path.kld.map_or(f64::INFINITY, |kld| kld.mean);
    if mean > demands.mean_kld + spread {
        complaints.push(format!("{}: mean divergence {mean:.4} above {}", path.path, demands.mean_kld));
    }
    if let Some(kld) = path.kld.filter(|kld| kld.p999 > demands.p999) {
        complaints.push(format!(
            "{}: its worst rows diverge by {:.2} nats (99.9 % of them), at most {}",
            path.path, kld.p999, demands.p999
        ));
    }
    let (factor, nats) = demands.over_prompt;
    if let Some(prompt) = path.prompt_kld_same_rows
        && mean > factor * prompt + nats + spread
    {
        complaints.push(format!(
            "{}: mean divergence {mean:.4} where the prompt path stands at {prompt:.4} over the same rows: this path \
             has an error of its own",
            path.path
        ));
    }
    if let Some(growth) = path.ppl_growth().filter(|growth| *growth > demands.ppl_growth) {
        let (grown, most) = (growth * 100.0, demands.ppl_growth * 100.0);
        complaints.push(format!("{}: perplexity up {grown:.1} %, at most {most} %", path.path));
    }
    if path.sure_flip_share() > demands.sure_flip_share {
        complaints.push(format!(
            "{}: {} hard flips in the {} rows the reference is sure of, at most {} %",
            path.path,
            path.sure_flips,
            path.sure_rows,
            demands.sure_flip_share * 100.0
        ));
    }
    complaints
}

/// The path that stands farthest from the reference: one that could not be compared first, then the largest mean
/// divergence.
pub fn worst(paths: &[PathResult]) -> Option<&PathResult> {
    let distance = |path: &PathResult| match path.kld {
        Some(kld) if path.bad_rows == 0 => kld.mean,
        _ => f64::INFINITY,
    };
    paths.iter().max_by(|a, b| distance(a).total_cmp(&distance(b)))
}
