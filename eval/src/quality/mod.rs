//! Quality: how close a candidate's distribution is to the exact reference's, on every way there is to reach a logit.
//!
//! [`plan`] says which tokens run in which steps; [`reference`] keeps the reference's log-probs on disk; [`reduce`]
//! turns two rows of log-probs into a few numbers and drops them; [`run`] drives both engines; [`conduct`] judges what
//! an engine generates by what it scores; [`identity`] judges the evaluator; [`gate`] gives the verdict of a mode. The
//! worst path is the score.

pub mod conduct;
pub mod gate;
pub mod identity;
pub mod plan;
pub mod reduce;
pub mod reference;
pub mod run;
pub mod texts;
pub mod wording;

pub use conduct::{Conduct, ConductOptions, ConductState, conduct};
pub use gate::{Mode, Verdict};
pub use identity::Identity;
pub use plan::{PathKind, PlanLimits};
pub use reduce::PathResult;
pub use run::{Quality, QualityOptions, measure};
pub use texts::Text;
