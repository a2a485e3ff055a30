//! The candidate digest: one name for everything that makes a built candidate behave as it does.
//!
//! It covers the source tree, the checkpoint, the resolved assembly with each plugin's version and code, the executable and
//! the device code. A measurement names it, a seal pins it, and serving compares it. The hash input is length-prefixed and
//! ordered, never some JSON text, so it does not depend on how anything prints.

use crit_core::digest::Digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// First part of the hash input; a change of the recipe is a new number.
const DOMAIN: &[u8] = b"crit.candidate.v1";

/// What a candidate digest is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateParts {
    /// The manifest id of the source tree.
    pub source: Digest,
    /// The manifest id of the checkpoint.
    pub checkpoint: Digest,
    /// The digest of the bytes of the resolved engine.json.
    pub engine: Digest,
    /// The plugins of the resolved assembly.
    pub plugins: Vec<PluginCode>,
    /// The digest of the executable that runs it.
    pub executable: Digest,
    /// Device code loaded at run time.
    #[serde(default)]
    pub cubins: Vec<DeviceCode>,
}

/// One plugin of an assembly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PluginCode {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The digest of its code.
    pub code: Digest,
}

/// One piece of device code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct DeviceCode {
    /// Its name.
    pub name: String,
    /// The digest of its bytes.
    pub sha256: Digest,
}

impl CandidateParts {
    /// The candidate digest. The order in which plugins and device code are listed does not matter.
    pub fn digest(&self) -> Digest {
        let mut plugins: Vec<&PluginCode> = self.plugins.iter().collect();
        plugins.sort_unstable();
        let mut cubins: Vec<&DeviceCode> = self.cubins.iter().collect();
        cubins.sort_unstable();
        let counts = [(plugins.len() as u64).to_le_bytes(), (cubins.len() as u64).to_le_bytes()];
        let mut parts: Vec<&[u8]> = vec![DOMAIN, self.source.bytes(), self.checkpoint.bytes(), self.engine.bytes()];
        parts.extend([self.executable.bytes() as &[u8], &counts[0], &counts[1]]);
        for plugin in plugins {
            parts.extend([plugin.name.as_bytes(), plugin.version.as_bytes(), plugin.code.bytes()]);
        }
        for cubin in cubins {
            parts.extend([cubin.name.as_bytes(), cubin.sha256.bytes() as &[u8]]);
        }
        Digest::of_parts(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn plugin(name: &str, version: &str) -> PluginCode {
        PluginCode { name: name.into(), version: version.into(), code: Digest::of(name.as_bytes()) }
    }

    fn parts() -> CandidateParts {
        CandidateParts {
            source: Digest::of(b"source"),
            checkpoint: Digest::of(b"checkpoint"),
            engine: Digest::of(b"{}"),
            plugins: vec![plugin("kv_q8", "1"), plugin("ngram", "2")],
            executable: Digest::of(b"elf"),
            cubins: vec![DeviceCode { name: "a.cubin".into(), sha256: Digest::of(b"a") }],
        }
    }

    #[test]
    fn every_part_changes_the_digest_and_listing_order_does_not() {
        let base = parts();
        let mut variants = vec![base.clone(); 9];
        variants[0].source = Digest::of(b"x");
        variants[1].checkpoint = Digest::of(b"x");
        variants[2].engine = Digest::of(b"x");
        variants[3].executable = Digest::of(b"x");
        variants[4].plugins[0].version = "3".into();
        variants[5].plugins[1].code = Digest::of(b"x");
        variants[6].plugins.pop();
        variants[7].cubins[0].name = "b.cubin".into();
        variants[8].cubins.clear();
        let digests: BTreeSet<_> = variants.iter().chain([&base]).map(CandidateParts::digest).collect();
        assert_eq!(digests.len(), 10);
        let mut turned = base.clone();
        turned.plugins.reverse();
        assert_eq!(turned.digest(), base.digest());
    }

    proptest! {
        #[test]
        fn moving_a_character_between_fields_changes_it(name in "[a-z]{1,6}", version in "[0-9]{2,4}") {
            let mut one = parts();
            one.plugins = vec![plugin("p", &version)];
            one.plugins[0].name = name.clone();
            let mut other = one.clone();
            other.plugins[0].name = format!("{name}{}", &version[..1]);
            other.plugins[0].version = version[1..].into();
            prop_assert_ne!(one.digest(), other.digest());
        }
    }
}
