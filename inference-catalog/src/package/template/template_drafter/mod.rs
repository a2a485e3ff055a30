//! Proposes the tokens that followed the last token the time before.

use crit_core::plugin::{Draft, Drafter, Options};
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;

/// The plugin. Every file of this folder must be named here.
pub const PLUGIN: Plugin = Plugin { files: plugin_files!("README.md", "entry.json", "mod.rs", "plugin.json"), make };

fn make(options: &Options) -> Result<Instance, PluginError> {
    Ok(Instance::Drafter(Box::new(LastToken { draft_tokens: options.int("draft_tokens") as usize })))
}

struct LastToken {
    draft_tokens: usize,
}

impl Drafter for LastToken {
    fn propose(&mut self, _key: u64, tokens: &[u32], limit: usize) -> Draft {
        let Some((last, before)) = tokens.split_last() else { return Draft::default() };
        let Some(place) = before.iter().rposition(|token| token == last) else { return Draft::default() };
        let wanted = limit.min(self.draft_tokens);
        Draft { tokens: tokens[place + 1..].iter().copied().take(wanted).collect(), probs: None }
    }

    // Nothing is kept about a request. A drafter that adapts learns here how many of its tokens were right.
    fn accepted(&mut self, _key: u64, _proposed: usize, _accepted: usize) {}

    fn forget(&mut self, _key: u64) {}
}
