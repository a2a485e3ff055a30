//! Every entry keeps the rules: its slot's contract, its description, and its folder.

use crit_catalog::{CATALOG, Entry};
use crit_kernels::plugin::conformance;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/entries").join(name)
}

#[test]
fn every_entry_keeps_the_contract_of_its_slot() {
    for plugin in CATALOG {
        conformance::check(plugin).unwrap();
    }
}

#[test]
fn every_entry_describes_itself() {
    for plugin in CATALOG {
        let entry = Entry::of(plugin).unwrap();
        assert!(!entry.tags.is_empty() && !entry.references.is_empty(), "{}", entry.name);
        let readme = plugin.file("README.md").unwrap();
        for heading in ["## Idea", "## When it wins, when it hurts", "## Options", "## Measured", "## Sources"] {
            assert!(readme.contains(heading), "{}: README.md lacks `{heading}`", entry.name);
        }
        for option in plugin.manifest().unwrap().options.keys() {
            assert!(readme.contains(&format!("`{option}`")), "{}: README.md does not explain `{option}`", entry.name);
        }
    }
}

#[test]
fn the_catalogue_is_sorted_and_every_folder_is_in_it_with_all_its_files() {
    let names: Vec<String> = CATALOG.iter().map(|p| p.manifest().unwrap().name).collect();
    assert!(names.is_sorted(), "{names:?}");
    let mut folders: Vec<String> = std::fs::read_dir(folder(""))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    folders.sort();
    assert_eq!(folders, names);
    for (plugin, name) in CATALOG.iter().zip(&names) {
        let mut files: Vec<String> = std::fs::read_dir(folder(name))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<&str> = plugin.files.iter().map(|(path, _)| *path).collect();
        assert_eq!(files, listed, "files of {name}");
    }
}
