//! The repository checks itself: lists are complete, links lead somewhere, rules of STYLE.md hold.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

/// Files below `dir` whose name ends in one of `endings`, build output and dot folders left out.
fn files(dir: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return out };
    for path in entries.filter_map(Result::ok).map(|e| e.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() || name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            out.extend(files(&path, endings));
        } else if endings.iter().any(|e| name.ends_with(e)) {
            out.push(path);
        }
    }
    out.sort();
    out
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn complain(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn links_in_docs_lead_somewhere() {
    let mut problems = Vec::new();
    for doc in files(&root(), &[".md"]).iter().filter(|d| !shown(d).contains("assets/")) {
        let text = read(doc);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            if !doc.parent().expect("a file has a folder").join(target).exists() {
                problems.push(format!("{}: link to `{target}` leads nowhere; mend or remove it", shown(doc)));
            }
        }
    }
    complain(&problems);
}

#[test]
fn every_op_file_is_listed() {
    let dir = root().join("core/src/model/program/ops");
    let list = read(&dir.join("mod.rs"));
    let names: Vec<String> = files(&dir, &[".rs"])
        .iter()
        .map(|p| p.file_stem().unwrap_or_default().to_string_lossy().into_owned())
        .filter(|n| n != "mod")
        .collect();
    let missing: Vec<String> = names
        .iter()
        .filter(|n| !list.contains(&format!("\"{n}\"")))
        .map(|n| format!("ops/{n}.rs is not in NAMES of ops/mod.rs; add its line"))
        .collect();
    complain(&missing);
    assert_eq!(names, crit_core::model::program::ops::NAMES, "NAMES is sorted and complete");
}

#[test]
fn every_family_has_a_committed_golden() {
    let problems: Vec<String> = crit_core::model::arch::FAMILIES
        .iter()
        .filter(|f| crit_tests::committed_case(f).is_none())
        .map(|f| format!("family `{0}` has no golden; commit a case under tests/fixtures/arch/{0}", f.name))
        .collect();
    complain(&problems);
}

#[test]
fn every_catalogue_entry_is_complete() {
    let dir = root().join("inference-catalog/src/entries");
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("entries").filter_map(Result::ok).filter(|e| e.path().is_dir()) {
        for file in ["README.md", "entry.json", "plugin.json", "mod.rs"] {
            if !entry.path().join(file).is_file() {
                problems.push(format!("{} lacks {file}; see docs/add-a-plugin.md", shown(&entry.path())));
            }
        }
    }
    complain(&problems);
}

#[test]
fn unsafe_stays_where_it_may() {
    let allowed = ["kernels/", "core/src/files/map.rs"];
    let mut problems = Vec::new();
    for path in files(&root(), &[".rs"]) {
        let name = shown(&path);
        if allowed.iter().any(|a| name.starts_with(a)) || name.ends_with("tests/tidy.rs") {
            continue;
        }
        for (i, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl") {
                problems.push(format!("{name}:{}: unsafe outside {}", i + 1, allowed.join(", ")));
            }
        }
    }
    complain(&problems);
}

#[test]
fn nothing_is_left_half_done() {
    let words = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore"), concat!("FIX", "ME")];
    let mut problems = Vec::new();
    for path in files(&root(), &[".rs", ".py", ".toml"]) {
        for (i, line) in read(&path).lines().enumerate() {
            if let Some(word) = words.iter().find(|w| line.contains(**w)) {
                problems.push(format!("{}:{}: `{word}`; finish it or take it out", shown(&path), i + 1));
            }
        }
    }
    complain(&problems);
}

#[test]
fn sources_open_with_their_purpose() {
    let problems: Vec<String> = files(&root(), &[".rs"])
        .iter()
        .filter(|p| !read(p).lines().take(5).any(|l| l.starts_with("//!")))
        .map(|p| format!("{} does not open with `//!`; say its purpose", shown(p)))
        .collect();
    complain(&problems);
}

#[test]
fn the_tree_stays_small() {
    let total: u64 = files(&root(), &[""]).iter().filter_map(|p| p.metadata().ok()).map(|m| m.len()).sum();
    assert!(total < 30 << 20, "the tracked tree is {total} bytes; it must stay under 30 MiB");
}
