//! `verify` gives every deliberately broken model file its expected answer, within the time and the memory allowed.
//!
//! A few cases are committed under `tests/fixtures/malformed`; `CRIT_FIXTURES` names a folder with all of them.
#![allow(clippy::print_stderr)]

use crit_tools::verify::verify;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn roots() -> Vec<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/malformed");
    let full = std::env::var_os("CRIT_FIXTURES").map(|root| PathBuf::from(root).join("malformed"));
    if full.is_none() {
        eprintln!("skipped: the full set of broken files: CRIT_FIXTURES is not set; the committed ones run");
    }
    [Some(committed), full].into_iter().flatten().collect()
}

#[test]
fn every_broken_file_gets_its_expected_answer() {
    for root in roots() {
        let expect: serde_json::Value =
            serde_json::from_slice(&std::fs::read(root.join("expect.json")).unwrap()).unwrap();
        let cases = expect["cases"].as_array().unwrap();
        let wrong: Vec<String> = cases.iter().filter_map(|case| fault(&root, case)).collect();
        assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
        assert!(!has_marker(&root, 4) && !has_marker(Path::new("."), 2), "a file ran something");
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let peak_kb: u64 = peak.expect("the system states it").trim().parse().unwrap();
        assert!(peak_kb < 200_000, "{peak_kb} kB at the peak");
    }
}

/// What is wrong with the answer to a case.
fn fault(root: &Path, case: &serde_json::Value) -> Option<String> {
    let open = case["open"].as_str().unwrap();
    let start = Instant::now();
    let said = verify(&root.join(open));
    let took = start.elapsed();
    let expected = case["expect"].as_str().unwrap();
    let right = match expected {
        "accept" => said.is_ok(),
        "refuse" => said.is_err(),
        other => other == "accept_or_refuse",
    };
    // A reader needs the file's name and the next step.
    let is_clear = said.as_ref().err().is_none_or(|error| {
        let name = Path::new(open).file_stem().unwrap().to_string_lossy().into_owned();
        let message = error.to_string();
        error.hint.is_some() && (message.contains(&name) || !message.is_empty() && case["at"] == "model load")
    });
    let fine = right && is_clear && took < Duration::from_secs(2);
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{open}: {said:?}");
    }
    (!fine).then(|| format!("{open}: expected {expected} ({}), got {said:?} in {took:?}", case["why"]))
}

fn has_marker(folder: &Path, depth: usize) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries
        .filter_map(Result::ok)
        .any(|entry| entry.file_name() == "pwned_marker" || depth > 0 && has_marker(&entry.path(), depth - 1))
}
