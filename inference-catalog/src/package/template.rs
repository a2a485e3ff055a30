//! What a new package and a new plugin begin as.

use super::PackageError;
use crit_kernels::plugin_files;

/// The name the template's files use.
const TEMPLATE_NAME: &str = "template_drafter";

const PLUGIN_FILES: &[(&str, &str)] = plugin_files!(
    "template/template_drafter/README.md",
    "template/template_drafter/entry.json",
    "template/template_drafter/mod.rs",
    "template/template_drafter/plugin.json",
);

/// Compiled here so that the template is known to compile and to keep its contract.
#[cfg(test)]
#[path = "template/template_drafter/mod.rs"]
mod template_drafter;

/// Stands in the manifest where the SDK's digest belongs.
const NO_SDK: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The files of a package without plugins.
pub(super) fn package() -> Vec<(String, String)> {
    vec![
        ("Cargo.toml".into(), include_str!("template/Cargo.toml.in").replace("SDK_DIGEST", NO_SDK)),
        ("src/main.rs".into(), include_str!("template/main.rs.in").into()),
    ]
}

/// The files of a plugin called `name`.
pub(super) fn plugin(name: &str) -> Vec<(String, String)> {
    PLUGIN_FILES
        .iter()
        .map(|(path, text)| {
            let file = path.rsplit('/').next().unwrap_or(path);
            (file.to_string(), text.replace(TEMPLATE_NAME, name))
        })
        .collect()
}

/// The manifest with its SDK paths at `digest`.
pub(super) fn with_sdk(manifest: &str, digest: &str) -> String {
    const BEFORE: &str = ".crit/sdk/";
    let mut parts = manifest.split(BEFORE);
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let old = part.chars().take_while(char::is_ascii_hexdigit).count();
        out.push_str(BEFORE);
        out.push_str(digest);
        out.push_str(&part[old..]);
    }
    out
}

/// A plugin's name is a Rust module's too.
pub(super) fn check_name(name: &str) -> Result<(), PackageError> {
    const KEYWORDS: [&str; 40] = [
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
        "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "match",
        "mod", "move", "mut", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true", "type",
        "use",
    ];
    let shape = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && name.len() <= 64;
    let why = match (shape, KEYWORDS.contains(&name)) {
        (true, false) => return Ok(()),
        (true, true) => "it is a word of Rust",
        (false, _) => "small letters, digits and _, a letter first, at most 64",
    };
    Err(PackageError::Name { name: name.into(), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crit_kernels::plugin::conformance;

    #[test]
    fn the_template_keeps_its_contract_and_takes_a_name() {
        conformance::check(&template_drafter::PLUGIN).unwrap();
        let files = plugin("my_drafter");
        let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, ["README.md", "entry.json", "mod.rs", "plugin.json"]);
        assert!(files.iter().all(|(_, text)| !text.contains(TEMPLATE_NAME)));
    }

    #[test]
    fn the_sdk_path_follows_the_digest() {
        let manifest = with_sdk(&package()[0].1, "ab12");
        assert_eq!(manifest.matches("../.crit/sdk/ab12/").count(), 3, "{manifest}");
        assert_eq!(with_sdk(&manifest, "cd34").matches("../.crit/sdk/cd34/").count(), 3);
    }

    #[test]
    fn names_are_module_names() {
        for bad in ["", "Draft", "3d", "a-b", "../x", "loop", "é"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        check_name("my_drafter2").unwrap();
    }
}
