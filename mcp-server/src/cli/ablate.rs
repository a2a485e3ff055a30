//! `crit ablate`: what each plugin of a candidate gives.

use super::call::Face;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Digest, the beginning of it, or name; the newest candidate if not given.
    #[arg(long)]
    candidate: Option<String>,
    /// Pairs of sessions a row, at least 10.
    #[arg(long)]
    pairs: Option<u32>,
}

impl Face for Args {
    const TOOL: &'static str = "ablate";

    fn arguments(&self) -> Value {
        json!({"candidate": self.candidate, "pairs": self.pairs})
    }
}
