//! Which plugins an executable has: its own, then the catalogue's; one's own takes the place of an entry of its name.

use crate::CATALOG;
use crit_core::plugin::{Assembly, AssemblyError, Manifest, ResolvedPlugin, resolve};
use crit_kernels::plugin::{Plugin, PluginError};

/// A plugin with its manifest.
#[derive(Clone)]
pub struct Known {
    /// The plugin.
    pub plugin: Plugin,
    /// What it says of itself.
    pub manifest: Manifest,
}

/// All plugins of an executable with the plugins `own`, by name.
///
/// # Errors
/// A manifest that cannot be read, or two of one's own plugins with one name.
pub fn known(own: &[Plugin]) -> Result<Vec<Known>, PluginError> {
    let mut all: Vec<Known> = Vec::new();
    for (i, plugin) in own.iter().chain(CATALOG).enumerate() {
        let manifest = plugin.manifest()?;
        let taken = all.iter().any(|known| known.manifest.name == manifest.name);
        if taken && i < own.len() {
            return Err(PluginError::Manifest { plugin: manifest.name, why: "two plugins have this name".into() });
        }
        if !taken {
            all.push(Known { plugin: *plugin, manifest });
        }
    }
    all.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
    Ok(all)
}

/// A plugin of an assembly, with what makes it.
pub struct Chosen {
    /// The plugin.
    pub plugin: Plugin,
    /// Its manifest and all its options.
    pub resolved: ResolvedPlugin,
}

/// Checks `assembly` against `known` and completes its options.
///
/// # Errors
/// The first rule it breaks.
pub fn choose(assembly: &Assembly, known: &[Known]) -> Result<Vec<Chosen>, AssemblyError> {
    let manifests: Vec<&Manifest> = known.iter().map(|known| &known.manifest).collect();
    let resolved = resolve(assembly, &manifests)?;
    Ok(resolved
        .into_iter()
        .filter_map(|resolved| {
            let known = known.iter().find(|known| known.manifest.name == resolved.manifest.name)?;
            Some(Chosen { plugin: known.plugin, resolved })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::ngram_drafter;

    const OWN: Plugin = Plugin {
        files: &[(
            "plugin.json",
            r#"{"name": "ngram_drafter", "version": "9.0.0", "summary": "s", "slot": "drafter", "backends": ["cpu"],
                "changes_output": false}"#,
        )],
        make: ngram_drafter::PLUGIN.make,
    };

    #[test]
    fn ones_own_plugin_takes_the_place_of_an_entry() {
        let all = known(&[OWN]).unwrap();
        assert_eq!(all.len(), CATALOG.len());
        let found = all.iter().find(|known| known.manifest.name == "ngram_drafter").unwrap();
        assert_eq!(found.manifest.version, "9.0.0");
        assert!(known(&[OWN, OWN]).is_err());
    }

    #[test]
    fn an_assembly_is_chosen_from_what_is_known() {
        let mut assembly = Assembly::base("m");
        assembly.plugins = serde_json::from_str(r#"[{"name": "prefix_cache"}, {"name": "ngram_drafter"}]"#).unwrap();
        let chosen = choose(&assembly, &known(&[]).unwrap()).unwrap();
        assert_eq!(chosen[1].resolved.options.int("min_ngram"), 3);
        assert_eq!(chosen[0].plugin.code_digest(), crate::entries::prefix_cache::PLUGIN.code_digest());
    }
}
