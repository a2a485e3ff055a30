//! `crit smoke`: does a candidate work at all.

use super::call::Face;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Digest, the beginning of it, or name; the newest candidate if not given.
    #[arg(long)]
    candidate: Option<String>,
}

impl Face for Args {
    const TOOL: &'static str = "smoke";

    fn arguments(&self) -> Value {
        json!({"candidate": self.candidate})
    }

    fn said_no(output: &Value) -> bool {
        output["passed"] == false
    }
}
