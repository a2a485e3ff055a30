//! `engine.json`: which model, where, and which plugins with which options; and the rules an assembly must keep.
//!
//! Nothing is loaded before an assembly is resolved: every plugin known, every option known and within bounds, one
//! plugin a slot, requirements met, no conflict. Whether op claims overlap is known only with the program; the backend
//! checks that when it lowers.

use super::manifest::{Manifest, OptionSpec};
use crate::error::{Diagnose, ErrorKind, nearest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What quality an engine promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QualityMode {
    /// Output stays that of the checkpoint, up to rounding.
    #[default]
    Preserve,
    /// Speed may cost quality within stated bounds.
    Speed,
}

/// A plugin in an assembly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginUse {
    /// Its name.
    pub name: String,
    /// Its options; those not given take their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, Value>,
}

/// `engine.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assembly {
    /// Model file or folder; relative to the workspace.
    pub model: PathBuf,
    /// `cpu`; later `cuda:0`.
    #[serde(default = "cpu")]
    pub target: String,
    /// What quality it promises.
    #[serde(default)]
    pub quality: QualityMode,
    /// Longest sequence, tokens; absent: the model's own, at most 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Most sequences at once.
    #[serde(default = "default_batch")]
    pub max_batch: usize,
    /// Kernel threads; absent: all cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Plugins that are on.
    #[serde(default)]
    pub plugins: Vec<PluginUse>,
    /// An engine of one's own that speaks the engine protocol, instead of plugins: argv, relative to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<ForeignEngine>,
}

/// An engine that is not crit's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForeignEngine {
    /// Program and arguments.
    pub command: Vec<String>,
}

fn cpu() -> String {
    "cpu".into()
}

fn default_batch() -> usize {
    8
}

impl Assembly {
    /// An assembly of `model` on the CPU with no plugins.
    pub fn base(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            target: cpu(),
            quality: QualityMode::default(),
            context: None,
            max_batch: default_batch(),
            threads: None,
            plugins: Vec::new(),
            engine: None,
        }
    }

    /// The backend part of `target`: `cpu` of `cpu`, `cuda` of `cuda:0`.
    pub fn backend(&self) -> &str {
        self.target.split(':').next().unwrap_or_default()
    }

    /// The device's number in `target`: 1 of `cuda:1`, 0 if it has none, `None` if what is there is no number or the backend has
    /// no devices.
    pub fn device(&self) -> Option<usize> {
        match self.target.split_once(':') {
            None => Some(0),
            Some(("cuda", number)) => number.parse().ok(),
            Some(_) => None,
        }
    }

    /// The same assembly without one plugin.
    pub fn without(&self, plugin: &str) -> Self {
        let mut other = self.clone();
        other.plugins.retain(|p| p.name != plugin);
        other
    }

    /// The same assembly with only one plugin.
    pub fn only(&self, plugin: &str) -> Self {
        let mut other = self.clone();
        other.plugins.retain(|p| p.name == plugin);
        other
    }
}

/// A plugin as it will be made: its manifest and every option with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedPlugin {
    /// Its manifest.
    pub manifest: Manifest,
    /// All its options.
    pub options: Options,
}

/// Option values, complete and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Options(BTreeMap<String, Value>);

impl Options {
    /// A whole-number option.
    ///
    /// # Panics
    /// The manifest does not declare it so.
    pub fn int(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).expect("declared as int in plugin.json")
    }

    /// A yes-or-no option.
    ///
    /// # Panics
    /// The manifest does not declare it so.
    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).expect("declared as bool in plugin.json")
    }

    /// A word option.
    ///
    /// # Panics
    /// The manifest does not declare it so.
    pub fn choice(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).expect("declared as choice in plugin.json")
    }
}

/// A rule an assembly breaks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AssemblyError {
    /// No such plugin.
    #[error("plugin `{name}` is not known")]
    Unknown {
        /// As given.
        name: String,
        /// The closest known name.
        near: Option<String>,
        /// All known names.
        known: Vec<String>,
    },
    /// A plugin named twice.
    #[error("plugin `{name}` is named twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// Two plugins for one slot.
    #[error("plugins `{first}` and `{second}` both fill the slot {slot}")]
    Slot {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The slot.
        slot: String,
    },
    /// No code for the target.
    #[error("plugin `{name}` has no code for `{backend}`; it has for {}", has.join(", "))]
    Backend {
        /// Its name.
        name: String,
        /// The assembly's backend.
        backend: String,
        /// Backends it has.
        has: Vec<String>,
    },
    /// A requirement that is not on.
    #[error("plugin `{name}` requires `{required}`")]
    Requires {
        /// Its name.
        name: String,
        /// What is missing.
        required: String,
    },
    /// Two plugins that must not be on together.
    #[error("plugins `{name}` and `{other}` cannot be on together")]
    Conflict {
        /// One.
        name: String,
        /// The other.
        other: String,
    },
    /// No such option.
    #[error("plugin `{plugin}` has no option `{option}`")]
    Option {
        /// The plugin.
        plugin: String,
        /// As given.
        option: String,
        /// Its options.
        known: Vec<String>,
    },
    /// A value the option does not take.
    #[error("plugin `{plugin}`, option `{option}`: {found} is not {expected}")]
    Value {
        /// The plugin.
        plugin: String,
        /// The option.
        option: String,
        /// As given.
        found: String,
        /// What it takes.
        expected: String,
    },
    /// A field of the assembly itself.
    #[error("`{field}`: {why}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong and what is right.
        why: String,
    },
}

impl Diagnose for AssemblyError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::Unknown { known, .. } => format!("known plugins: {}", known.join(", ")),
            Self::Twice { name } => format!("name `{name}` once"),
            Self::Slot { second, .. } => format!("leave out `{second}` or the other"),
            Self::Backend { name, .. } => format!("leave out `{name}` or choose another target"),
            Self::Requires { required, .. } => format!("add `{required}`"),
            Self::Conflict { other, .. } => format!("leave out `{other}`"),
            Self::Option { option, known, .. } => match nearest(option, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its options: {}", known.join(", ")),
            },
            Self::Value { expected, .. } => format!("give {expected}"),
            Self::Field { field, .. } => format!("correct `{field}` in engine.json"),
        })
    }
}

/// Checks `assembly` against the plugins there are and completes every option.
///
/// # Errors
/// The first rule it breaks.
pub fn resolve(assembly: &Assembly, known: &[&Manifest]) -> Result<Vec<ResolvedPlugin>, AssemblyError> {
    check_fields(assembly)?;
    let mut seen = BTreeSet::new();
    let mut out: Vec<ResolvedPlugin> = Vec::new();
    for used in &assembly.plugins {
        let manifest = find(&used.name, known)?;
        if !seen.insert(manifest.name.as_str()) {
            return Err(AssemblyError::Twice { name: used.name.clone() });
        }
        if !manifest.backends.iter().any(|b| b == assembly.backend()) {
            return Err(AssemblyError::Backend {
                name: used.name.clone(),
                backend: assembly.backend().into(),
                has: manifest.backends.clone(),
            });
        }
        if let Some(first) = out.iter().find(|p| p.manifest.slot == manifest.slot && manifest.slot.exclusive()) {
            return Err(AssemblyError::Slot {
                first: first.manifest.name.clone(),
                second: used.name.clone(),
                slot: format!("{:?}", manifest.slot),
            });
        }
        out.push(ResolvedPlugin { manifest: manifest.clone(), options: options(used, manifest)? });
    }
    check_relations(&out)?;
    Ok(out)
}

fn check_fields(assembly: &Assembly) -> Result<(), AssemblyError> {
    let field = |field, why: &str| Err(AssemblyError::Field { field, why: why.into() });
    match assembly.backend() {
        "cpu" | "cuda" => {}
        other => {
            let why = format!("`{other}` is not a target; `cpu`, `cuda` and `cuda:N` are");
            return Err(AssemblyError::Field { field: "target", why });
        }
    }
    if assembly.device().is_none() {
        return field("target", "must be `cpu`, `cuda` or `cuda:N`, N the device's number");
    }
    if assembly.max_batch == 0 || assembly.max_batch > 1024 {
        return field("max_batch", "must be between 1 and 1024");
    }
    if assembly.context.is_some_and(|c| c < 16) {
        return field("context", "must be at least 16 tokens");
    }
    if assembly.threads == Some(0) {
        return field("threads", "must be at least 1");
    }
    if let Some(engine) = &assembly.engine {
        if engine.command.is_empty() {
            return field("engine.command", "must name a program");
        }
        if !assembly.plugins.is_empty() {
            return field("plugins", "an engine of one's own takes no plugins; leave the list empty");
        }
    }
    Ok(())
}

fn find<'a>(name: &str, known: &[&'a Manifest]) -> Result<&'a Manifest, AssemblyError> {
    known.iter().copied().find(|m| m.name == name).ok_or_else(|| AssemblyError::Unknown {
        name: name.into(),
        near: nearest(name, known.iter().map(|m| m.name.as_str())).map(String::from),
        known: known.iter().map(|m| m.name.clone()).collect(),
    })
}

fn check_relations(plugins: &[ResolvedPlugin]) -> Result<(), AssemblyError> {
    let on = |name: &str| plugins.iter().any(|p| p.manifest.name == name);
    for plugin in plugins {
        let name = plugin.manifest.name.clone();
        if let Some(required) = plugin.manifest.requires.iter().find(|r| !on(r)) {
            return Err(AssemblyError::Requires { name, required: required.clone() });
        }
        if let Some(other) = plugin.manifest.conflicts.iter().find(|c| on(c)) {
            return Err(AssemblyError::Conflict { name, other: other.clone() });
        }
    }
    Ok(())
}

fn options(used: &PluginUse, manifest: &Manifest) -> Result<Options, AssemblyError> {
    if let Some(option) = used.options.keys().find(|o| !manifest.options.contains_key(*o)) {
        return Err(AssemblyError::Option {
            plugin: used.name.clone(),
            option: option.clone(),
            known: manifest.options.keys().cloned().collect(),
        });
    }
    let mut out = BTreeMap::new();
    for (name, spec) in &manifest.options {
        let value = match used.options.get(name) {
            None => default(spec),
            Some(given) if accepts(spec, given) => given.clone(),
            Some(given) => {
                return Err(AssemblyError::Value {
                    plugin: used.name.clone(),
                    option: name.clone(),
                    found: given.to_string(),
                    expected: expected(spec),
                });
            }
        };
        out.insert(name.clone(), value);
    }
    Ok(Options(out))
}

fn default(spec: &OptionSpec) -> Value {
    match spec {
        OptionSpec::Int { default, .. } => Value::from(*default),
        OptionSpec::Bool { default, .. } => Value::from(*default),
        OptionSpec::Choice { default, .. } => Value::from(default.as_str()),
    }
}

fn accepts(spec: &OptionSpec, value: &Value) -> bool {
    match spec {
        OptionSpec::Int { min, max, .. } => value.as_i64().is_some_and(|v| (*min..=*max).contains(&v)),
        OptionSpec::Bool { .. } => value.is_boolean(),
        OptionSpec::Choice { values, .. } => value.as_str().is_some_and(|v| values.iter().any(|w| w == v)),
    }
}

fn expected(spec: &OptionSpec) -> String {
    match spec {
        OptionSpec::Int { min, max, .. } => format!("a whole number from {min} to {max}"),
        OptionSpec::Bool { .. } => "true or false".into(),
        OptionSpec::Choice { values, .. } => format!("one of {}", values.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest(name: &str, slot: &str) -> Manifest {
        serde_json::from_value(json!({
            "name": name, "version": "1.0.0", "summary": "s", "slot": slot, "backends": ["cpu"], "changes_output": false,
            "options": {"width": {"type": "int", "about": "tokens", "min": 1, "max": 8, "default": 4}}
        }))
        .unwrap()
    }

    fn with(plugins: &[(&str, Value)]) -> Assembly {
        let mut assembly = Assembly::base("m");
        assembly.plugins = plugins
            .iter()
            .map(|(name, options)| PluginUse {
                name: (*name).into(),
                options: serde_json::from_value(options.clone()).unwrap(),
            })
            .collect();
        assembly
    }

    #[test]
    fn options_are_completed_and_bounded() {
        let ngram = manifest("ngram", "drafter");
        let resolved = resolve(&with(&[("ngram", json!({}))]), &[&ngram]).unwrap();
        assert_eq!(resolved[0].options.int("width"), 4);
        let error = resolve(&with(&[("ngram", json!({"width": 9}))]), &[&ngram]).unwrap_err();
        assert_eq!(error.to_string(), "plugin `ngram`, option `width`: 9 is not a whole number from 1 to 8");
        let error = resolve(&with(&[("ngram", json!({"widht": 2}))]), &[&ngram]).unwrap_err();
        assert_eq!(error.hint().unwrap(), "did you mean `width`?");
    }

    #[test]
    fn rules_name_the_plugins() {
        let (a, b) = (manifest("ngram", "drafter"), manifest("suffix", "drafter"));
        let unknown = resolve(&with(&[("ngrm", json!({}))]), &[&a, &b]).unwrap_err();
        assert_eq!(unknown.hint().unwrap(), "did you mean `ngram`?");
        let slot = resolve(&with(&[("ngram", json!({})), ("suffix", json!({}))]), &[&a, &b]).unwrap_err();
        assert!(matches!(slot, AssemblyError::Slot { .. }), "{slot}");
        let twice = resolve(&with(&[("ngram", json!({})), ("ngram", json!({}))]), &[&a, &b]).unwrap_err();
        assert!(matches!(twice, AssemblyError::Twice { .. }), "{twice}");
        let mut needy = manifest("needy", "op");
        needy.requires = vec!["ngram".into()];
        let requires = resolve(&with(&[("needy", json!({}))]), &[&a, &needy]).unwrap_err();
        assert_eq!(requires.hint().unwrap(), "add `ngram`");
        needy.requires.clear();
        needy.conflicts = vec!["ngram".into()];
        let conflict = resolve(&with(&[("ngram", json!({})), ("needy", json!({}))]), &[&a, &needy]).unwrap_err();
        assert!(matches!(conflict, AssemblyError::Conflict { .. }), "{conflict}");
    }
}
