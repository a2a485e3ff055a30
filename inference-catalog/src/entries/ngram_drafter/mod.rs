//! N-gram drafter: proposes what followed the last tokens the last time they occurred.
//!
//! Per request a chain of earlier places with the same last `min_ngram` tokens is kept, newest first, so a proposal
//! looks at few places however long the text is. Of those the one that agrees with the end of the text the longest
//! wins, the newest among equals. How many tokens are proposed follows what was accepted ([`pace`]).
//!
//! It is certain of each token (no distributions), so greedy output is unchanged and sampled output keeps its
//! distribution under rejection sampling.

mod index;
mod pace;

#[cfg(test)]
mod tests;

use crit_core::plugin::{Draft, Drafter, Options};
use crit_kernels::plugin::{Instance, Plugin, PluginError};
use crit_kernels::plugin_files;
use index::Index;
use pace::Pace;
use std::collections::HashMap;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    files: plugin_files!("README.md", "entry.json", "index.rs", "mod.rs", "pace.rs", "plugin.json", "tests.rs"),
    make,
};

fn make(options: &Options) -> Result<Instance, PluginError> {
    let (min_ngram, max_ngram) = (options.int("min_ngram") as usize, options.int("max_ngram") as usize);
    if min_ngram > max_ngram {
        return Err(PluginError::Options {
            plugin: "ngram_drafter".into(),
            why: format!("min_ngram {min_ngram} is above max_ngram {max_ngram}"),
        });
    }
    Ok(Instance::Drafter(Box::new(NgramDrafter {
        min_ngram,
        max_ngram,
        draft_tokens: options.int("draft_tokens") as usize,
        adaptive: options.flag("adaptive"),
        requests: HashMap::new(),
    })))
}

struct NgramDrafter {
    min_ngram: usize,
    max_ngram: usize,
    draft_tokens: usize,
    adaptive: bool,
    requests: HashMap<u64, Request>,
}

struct Request {
    index: Index,
    pace: Pace,
}

impl Drafter for NgramDrafter {
    fn propose(&mut self, key: u64, tokens: &[u32], limit: usize) -> Draft {
        let request = self.requests.entry(key).or_insert_with(|| Request {
            index: Index::new(self.min_ngram),
            pace: Pace::new(self.draft_tokens, self.adaptive),
        });
        request.index.extend(tokens);
        let wanted = limit.min(self.draft_tokens);
        let Some(place) = request.index.longest(tokens, self.max_ngram).filter(|_| wanted > 0) else {
            return Draft::default();
        };
        let wanted = wanted.min(request.pace.next());
        Draft { tokens: copied(tokens, place, wanted), probs: None }
    }

    fn accepted(&mut self, key: u64, proposed: usize, accepted: usize) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.pace.learn(proposed, accepted);
        }
    }

    fn forget(&mut self, key: u64) {
        self.requests.remove(&key);
    }
}

/// `count` tokens from `place` on. A copy that reaches the end of the text goes on with what it has copied, so a
/// repeated phrase shorter than the draft is proposed again and again.
fn copied(tokens: &[u32], place: usize, count: usize) -> Vec<u32> {
    let period = tokens.len() - place;
    (0..count).map(|i| tokens[place + i % period]).collect()
}
