//! Speed: as a user meets it, through the running server ([`served`]), and straight through the engine protocol
//! ([`direct`]), comparable with `llama-bench`.
//!
//! Only this process's clock is used: what an engine says about its own times is not. Prompts of repeats differ in
//! their first tokens, so that no repeat can live off the prefix cache of another.

pub mod beyond;
pub mod direct;
pub mod honesty;
pub mod http;
pub mod served;
pub mod suite;
mod warm;

pub use beyond::{Beyond, BeyondOptions};
pub use direct::{DirectOptions, DirectSpeed};
pub use honesty::{Honesty, HonestyOptions};
pub use served::{ServedOptions, ServedSpeed};

use crate::ceiling::{CeilingModel, FastestAllowed, PhaseFloor, Share, share};
use crate::error::EvalError;
use crate::limits::Limits;
use crit_core::model::program::Program;
use crit_core::protocol::PassCount;
use crit_core::runtime::ExecutorInfo;

/// What ceilings are computed from.
#[derive(Clone, Copy)]
pub struct CeilingInput<'a> {
    /// The model.
    pub program: &'a Program,
    /// How the engine stores and computes it.
    pub executor: &'a ExecutorInfo,
    /// The machine, at the engine's number of threads.
    pub limits: &'a Limits,
    /// The fastest format the quality mode allows.
    pub fastest_allowed: FastestAllowed,
}

impl CeilingInput<'_> {
    /// The share of `tokens` in `measured_s` by `passes`.
    pub(crate) fn share(&self, tokens: u64, measured_s: f64, passes: &[PassCount]) -> Result<Option<Share>, EvalError> {
        self.share_between(tokens, measured_s, passes, &[])
    }

    /// The same, less the floor of passes that were run before the clock started.
    pub(crate) fn share_between(
        &self,
        tokens: u64,
        measured_s: f64,
        passes: &[PassCount],
        before: &[PassCount],
    ) -> Result<Option<Share>, EvalError> {
        let model = CeilingModel::new(self.program, self.executor, self.limits)?;
        let floor = |model: &CeilingModel<'_>| less(model.phase(passes), &model.phase(before));
        let fastest = floor(&model.at_fastest(self.fastest_allowed));
        Ok(share(tokens, measured_s, &floor(&model), self.limits).map(|share| Share {
            fastest_allowed_tok_s: (fastest.floor_s > 0.0).then(|| tokens as f64 / fastest.floor_s),
            ..share
        }))
    }
}

/// When the first token of an answer was there: when it was seen, or, if that was clearly later than a whole request for
/// one token takes, that time. Tokens without text and a reader that got no processor both show a first token too
/// late, and counting late would make decoding look faster than it was.
pub(crate) fn first_token_s(seen_s: f64, end_s: f64, tokens: u64, one_token_s: f64) -> f64 {
    let gap_s = (end_s - seen_s) / tokens.max(1) as f64;
    // A tenth of the one-token time covers what differs from repeat to repeat.
    let late = seen_s - one_token_s > (2.0 * gap_s).max(0.1 * one_token_s);
    if late { one_token_s } else { seen_s }
}

fn less(phase: PhaseFloor, before: &PhaseFloor) -> PhaseFloor {
    PhaseFloor {
        floor_s: phase.floor_s - before.floor_s,
        memory_bound_s: phase.memory_bound_s - before.memory_bound_s,
        arithmetic_bound_s: phase.arithmetic_bound_s - before.arithmetic_bound_s,
        serial_s: phase.serial_s - before.serial_s,
        weight_bytes: phase.weight_bytes.saturating_sub(before.weight_bytes),
        state_bytes: phase.state_bytes.saturating_sub(before.state_bytes),
        flops: phase.flops.saturating_sub(before.flops),
        ..phase
    }
}

/// The median share of several, with the gravest state among them.
pub(crate) fn median_share(mut shares: Vec<Share>) -> Option<Share> {
    use crate::ceiling::ShareState::{Invalid, Unstable};
    shares.sort_by(|a, b| a.share.total_cmp(&b.share));
    let gravest = [Invalid, Unstable].into_iter().find_map(|state| shares.iter().find(|s| s.state == state).cloned());
    let middle = shares.get(shares.len() / 2)?.clone();
    Some(match gravest {
        Some(grave) => Share { state: grave.state, reason: grave.reason, ..middle },
        None => middle,
    })
}
