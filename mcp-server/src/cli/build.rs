//! `crit build`: freeze, check and build the candidate in `engine/`.

use super::call::Face;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A name for it within the run.
    #[arg(long)]
    name: Option<String>,
}

impl Face for Args {
    const TOOL: &'static str = "build_candidate";

    fn arguments(&self) -> Value {
        json!({"name": self.name})
    }
}
