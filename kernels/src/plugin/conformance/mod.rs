//! What every plugin of a slot must keep, as code: called by the catalogue's tests and by the tests of an engine
//! package.
//!
//! A contract is tried with the default options and with every option at its ends, on inputs made from a fixed seed.
//! It shows that rules are kept, not that a plugin is fast or useful.

mod drafter;
mod kv_cache;
mod op;
mod prefix_cache;
#[cfg(test)]
mod tests;

use super::{Instance, Plugin, PluginError};
use crit_core::plugin::assembly::{self, Assembly, Options, PluginUse};
use crit_core::plugin::{Manifest, OptionSpec};
use serde_json::Value;
use std::collections::BTreeMap;

/// A rule a plugin breaks, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugin `{plugin}` breaks its contract: {rule}")]
pub struct Broken {
    /// Its name.
    pub plugin: String,
    /// The rule and how it was broken.
    pub rule: String,
}

/// What one slot's contract says of one made plugin.
type Verdict = Result<(), String>;

/// Tries `plugin` against the rules of manifests and of its slot.
///
/// # Errors
/// The first rule it breaks.
pub fn check(plugin: &Plugin) -> Result<(), Broken> {
    let manifest = plugin.manifest().map_err(|error| broken("?", error.to_string()))?;
    let fail = |rule: String| broken(&manifest.name, rule);
    check_files(plugin).and_then(|()| check_manifest(&manifest)).map_err(fail)?;
    for given in option_corners(&manifest) {
        let label = serde_json::to_string(&given).unwrap_or_default();
        let fail = |rule: String| broken(&manifest.name, format!("with options {label}: {rule}"));
        let options = options(&manifest, given).map_err(|error| fail(error.to_string()))?;
        let made = || match (plugin.make)(&options) {
            Ok(instance) if instance.slot() == manifest.slot => Ok(Some(instance)),
            Ok(instance) => Err(format!("plugin.json says {:?}, the code makes {:?}", manifest.slot, instance.slot())),
            // Two options may exclude each other; that is for the plugin to say.
            Err(PluginError::Options { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        match made().map_err(fail)? {
            None => {}
            Some(Instance::Drafter(mut drafter)) => drafter::check(drafter.as_mut()).map_err(fail)?,
            Some(Instance::DraftHead { tokens }) => {
                require(tokens > 0, || "it drafts no tokens".into()).map_err(fail)?
            }
            Some(Instance::KvCache(format)) => kv_cache::check(format.as_ref(), &manifest).map_err(fail)?,
            // Judged where there is a GPU: every strategy is on in `tests/cuda_parity.rs`, and none in its base rows.
            Some(Instance::Cuda(strategy)) => {
                require(strategy.name() == manifest.name, || format!("it makes the strategy {}", strategy.name()))
                    .map_err(fail)?
            }
            Some(Instance::Op(op)) => op::check(op.as_ref(), &manifest).map_err(fail)?,
            Some(Instance::PrefixCache(mut cache)) => prefix_cache::check(cache.as_mut()).map_err(fail)?,
        }
    }
    Ok(())
}

/// The options of a plugin with some of them given, as an assembly would resolve them.
///
/// # Errors
/// An option it does not have, or a value it does not take.
pub fn options(manifest: &Manifest, given: BTreeMap<String, Value>) -> Result<Options, assembly::AssemblyError> {
    let mut alone = manifest.clone();
    alone.requires.clear();
    let backend = alone.backends.first().cloned().unwrap_or_default();
    let mut assembly = Assembly::base("none");
    assembly.target = backend;
    assembly.plugins = vec![PluginUse { name: alone.name.clone(), options: given }];
    Ok(assembly::resolve(&assembly, &[&alone])?.remove(0).options)
}

/// Makes a plugin with options given as a JSON object, for tests.
///
/// # Errors
/// The options are not an object or not the plugin's, or the plugin refuses.
pub fn made(plugin: &Plugin, options_json: &str) -> Result<Instance, Broken> {
    let manifest = plugin.manifest().map_err(|error| broken("?", error.to_string()))?;
    let given = serde_json::from_str(options_json).map_err(|error| broken(&manifest.name, error.to_string()))?;
    let options = options(&manifest, given).map_err(|error| broken(&manifest.name, error.to_string()))?;
    (plugin.make)(&options).map_err(|error| broken(&manifest.name, error.to_string()))
}

fn broken(plugin: &str, rule: String) -> Broken {
    Broken { plugin: plugin.into(), rule }
}

/// Files a plugin's folder must have.
pub const REQUIRED_FILES: [&str; 4] = ["README.md", "entry.json", "mod.rs", "plugin.json"];

fn check_files(plugin: &Plugin) -> Verdict {
    if let Some(missing) = REQUIRED_FILES.iter().find(|f| plugin.file(f).is_none_or(|text| text.trim().is_empty())) {
        return Err(format!("its file {missing} is missing or empty"));
    }
    require(plugin.files.is_sorted_by(|a, b| a.0 < b.0), || "its files are not in ascending order, each once".into())
}

/// The rules of a manifest that its type does not keep.
///
/// # Errors
/// The first one broken, in words.
pub fn check_manifest(manifest: &Manifest) -> Result<(), String> {
    let name = &manifest.name;
    if !is_name(name) {
        return Err(format!("`{name}` is not a name: small letters, digits and _, a letter first"));
    }
    if manifest.version.split('.').count() != 3 || manifest.version.split('.').any(|p| p.parse::<u32>().is_err()) {
        return Err(format!("version `{}` is not MAJOR.MINOR.PATCH", manifest.version));
    }
    if manifest.backends.is_empty() {
        return Err("it names no backend".into());
    }
    manifest.options.iter().try_for_each(|(option, spec)| check_option(option, spec))
}

fn check_option(name: &str, spec: &OptionSpec) -> Verdict {
    let (about, fits) = match spec {
        OptionSpec::Int { about, min, max, default } => (about, (min..=max).contains(&default)),
        OptionSpec::Bool { about, .. } => (about, true),
        OptionSpec::Choice { about, values, default } => (about, values.contains(default)),
    };
    match () {
        () if !is_name(name) => Err(format!("`{name}` is not an option name")),
        () if about.trim().is_empty() => Err(format!("option `{name}` does not say what it does")),
        () if !fits => Err(format!("option `{name}` has a default it would not take")),
        () => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The defaults, and every option at each of its ends with the others at their defaults.
fn option_corners(manifest: &Manifest) -> Vec<BTreeMap<String, Value>> {
    let mut corners = vec![BTreeMap::new()];
    for (name, spec) in &manifest.options {
        let ends: Vec<Value> = match spec {
            OptionSpec::Int { min, max, .. } => vec![(*min).into(), (*max).into()],
            OptionSpec::Bool { .. } => vec![true.into(), false.into()],
            OptionSpec::Choice { values, .. } => values.iter().map(|v| v.as_str().into()).collect(),
        };
        corners.extend(ends.into_iter().map(|end| BTreeMap::from([(name.clone(), end)])));
    }
    corners
}

/// A small generator of numbers, the same on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        // Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    /// About normal: twelve uniform numbers summed.
    fn normal(&mut self) -> f32 {
        const STEPS: u64 = 1 << 16;
        (0..12).map(|_| self.below(STEPS) as f32 / STEPS as f32).sum::<f32>() - 6.0
    }
}

/// Root mean square of the difference over that of `expected`, parts per million.
fn distance_ppm(found: &[f32], expected: &[f32]) -> u64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = square(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    let size = square(&mut expected.iter().map(|v| f64::from(*v)));
    // A difference that is not a number must not pass as none.
    if found.len() != expected.len() || !off.is_finite() {
        return u64::MAX;
    }
    ((off / size.max(f64::MIN_POSITIVE)).sqrt() * 1e6) as u64
}

fn require(holds: bool, rule: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(rule()) }
}
