//! `plugin.json`: what a plugin says of itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a plugin may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Layout and number format of the KV cache.
    KvCache,
    /// Reuse of state across requests with a common beginning.
    PrefixCache,
    /// Proposes tokens to verify in one pass.
    Drafter,
    /// Kernels for ops of the program. Several may be on as long as their claims do not overlap.
    Op,
}

impl Slot {
    /// Whether at most one plugin of the slot may be on.
    pub const fn exclusive(self) -> bool {
        !matches!(self, Self::Op)
    }
}

/// A plugin's manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `snake_case`, unique.
    pub name: String,
    /// Semantic version.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// The slot it fills.
    pub slot: Slot,
    /// Backends it has code for: `cpu`, `cuda`.
    pub backends: Vec<String>,
    /// Ops it claims, for the op slot: the condition is checked by its code, this is for people and search.
    #[serde(default)]
    pub claims: Vec<String>,
    /// Plugins that must be on with it.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Plugins that must not be on with it.
    #[serde(default)]
    pub conflicts: Vec<String>,
    /// Number formats it uses, by role: `weight`, `activation`, `accumulator`, `state`.
    #[serde(default)]
    pub dtypes: BTreeMap<String, String>,
    /// For the slots op and kv_cache: how far a claimed op's result may be from its plain reference, or a stored row from
    /// what was stored: root mean square of the difference over that of the value, parts per million. Absent: 10 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ppm: Option<u32>,
    /// Whether it may change the tokens an engine gives (quality must be measured), as opposed to only the speed.
    pub changes_output: bool,
    /// Its options.
    #[serde(default)]
    pub options: BTreeMap<String, OptionSpec>,
}

/// An option of a plugin: what it does (with its unit), what values it takes, and its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptionSpec {
    /// A whole number within bounds.
    Int {
        /// What it does.
        about: String,
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
        /// Value when not given.
        default: i64,
    },
    /// Yes or no.
    Bool {
        /// What it does.
        about: String,
        /// Value when not given.
        default: bool,
    },
    /// One of some words.
    Choice {
        /// What it does.
        about: String,
        /// The words.
        values: Vec<String>,
        /// Value when not given.
        default: String,
    },
}
