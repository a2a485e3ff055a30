//! Every deliberately broken model file gets its expected answer, fast and without a crash.
//!
//! Needs the full fixture set: a folder in `CRIT_FIXTURES` with `malformed/expect.json` and the files it names.

#![allow(clippy::print_stderr)]

use crit_core::files::{Checkpoint, FileError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn fixtures() -> Option<PathBuf> {
    let found = std::env::var_os("CRIT_FIXTURES").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: CRIT_FIXTURES names no folder with the full fixture set");
    }
    found
}

/// What a caller that only inspects does.
fn inspect(path: &Path) -> Result<(), FileError> {
    let checkpoint = Checkpoint::open(path)?;
    for tensor in checkpoint.tensors() {
        let _ = (tensor.bytes().len(), tensor.shape());
    }
    checkpoint.bytes_by_dtype();
    Ok(())
}

/// What every family's builder reads first.
fn read_sizes(path: &Path) -> Result<(), FileError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.model_type()?;
    let config = checkpoint.config()?.text()?;
    for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"] {
        config.positive(key)?;
    }
    config.f64("rms_norm_eps")?;
    config.f64("rope_theta")?;
    Ok(())
}

/// Faults between the configuration and the tensors: a builder of the family compares these, no container does.
const FOR_THE_BUILDER: &[&str] = &[
    "config/heads_not_divisible",
    "config/layers_1e9",
    "config/missing_tensors",
    "config/tensor_shape_mismatch",
    "config/unknown_model_type",
];

#[test]
fn every_broken_file_gets_its_expected_answer() {
    let Some(root) = fixtures() else { return };
    let root = root.join("malformed");
    let expect: serde_json::Value = serde_json::from_slice(&std::fs::read(root.join("expect.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for case in expect["cases"].as_array().unwrap() {
        let open = case["open"].as_str().unwrap();
        let kind = open.split('/').next().unwrap();
        if FOR_THE_BUILDER.contains(&open) {
            continue;
        }
        seen += 1;
        let start = Instant::now();
        let whole = kind == "config" || case["at"] == "model load";
        let result = if whole { read_sizes(&root.join(open)) } else { inspect(&root.join(open)) };
        let took = start.elapsed();
        let expected = case["expect"].as_str().unwrap();
        let right = match expected {
            "accept" => result.is_ok(),
            "refuse" => result.is_err(),
            other => other == "accept_or_refuse",
        };
        let said = result.map_err(crit_core::error::Failure::from);
        if let Err(failure) = &said {
            assert!(failure.hint.is_some(), "{open}: no next step with {failure}");
        }
        if !right || took > Duration::from_secs(2) {
            wrong.push(format!("{open}: expected {expected} ({}), got {said:?} in {took:?}", case["why"]));
        }
        if std::env::var_os("SHOW").is_some() {
            eprintln!("{open}: {said:?}");
        }
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        let peak_kb: u64 = peak.expect("the system states it").trim().parse().unwrap();
        assert!(peak_kb < 200_000, "{peak_kb} kB at the peak");
    }
    assert!(seen > 200, "only {seen} cases");
    assert!(wrong.is_empty(), "{} of {seen} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
