//! `crit recon`: what machine, what model, how far physics allows.

use super::call::Face;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model file or folder (safetensors or GGUF).
    #[arg(long)]
    model: Option<PathBuf>,
    /// What the run is to reach, in words.
    #[arg(long)]
    goal: Option<String>,
    /// Quality mode: `preserve` or `speed`.
    #[arg(long)]
    quality: Option<String>,
    /// Measure the machine again.
    #[arg(long)]
    probe_again: bool,
}

impl Face for Args {
    const TOOL: &'static str = "recon";

    fn arguments(&self) -> Value {
        // From the command line a path counts from where the person stands.
        let model = self.model.as_ref().map(|path| super::call::absolute(path));
        json!({"model": model, "goal": self.goal, "quality": self.quality, "probe_again": self.probe_again})
    }
}
