//! `crit seal`: decide for a candidate and close the run.

use super::call::Face;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The whole digest.
    #[arg(long)]
    candidate: String,
    /// Why this one, if another leads by the run's rule.
    #[arg(long)]
    reason: Option<String>,
}

impl Face for Args {
    const TOOL: &'static str = "seal";

    fn arguments(&self) -> Value {
        json!({"candidate": self.candidate, "reason": self.reason})
    }
}
