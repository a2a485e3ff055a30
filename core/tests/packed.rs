//! Packed weights against the values that the libraries which own the formats read: the same to the bit.
#![allow(clippy::print_stderr)]

use crit_core::digest::Digest;
use crit_core::files::{Checkpoint, DType};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders of cases: the full set where there is one, the committed ones otherwise.
fn cases() -> Vec<PathBuf> {
    let full = std::env::var_os("CRIT_FIXTURES").map(|root| PathBuf::from(root).join("quant"));
    let root = full.filter(|root| root.is_dir()).unwrap_or_else(|| {
        eprintln!("skipped: the full set of quantised cases: CRIT_FIXTURES is not set; the committed cases run");
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quant")
    });
    let mut found: Vec<PathBuf> = std::fs::read_dir(&root)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    // GGUF files hold rows in an order of their own: another test's.
    found.retain(|path| path.join("golden.json").is_file() && !path.join("model.gguf").is_file());
    found.sort();
    found
}

#[test]
fn values_are_those_of_the_owning_libraries() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let cases = cases();
    assert!(!cases.is_empty(), "cases are committed");
    for folder in cases {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        for (weight, facts) in golden["all_weights"].as_object().unwrap() {
            let tensor = checkpoint.tensor(weight).unwrap_or_else(|| panic!("{name}: no {weight}"));
            let shape: Vec<usize> = serde_json::from_value(facts["shape"].clone()).unwrap();
            assert_eq!(tensor.shape(), shape, "{name}: {weight}");
            let values = tensor.to_f32();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let same = Digest::of(&bytes).to_string() == facts["sha256_f32le"].as_str().unwrap();
            let form = tensor.stored_as();
            *seen.entry(form).or_default() += 1;
            assert!(same, "{name}: {weight} ({form}) differs");
            // Any range of rows is the same as its part of the whole.
            if tensor.dtype() == DType::PACKED {
                let (rows, width) = (tensor.rows(), tensor.row_len());
                let range = rows / 3..rows - rows / 4;
                let mut part = vec![f32::NAN; range.len() * width];
                tensor.dequant_rows(range.clone(), &mut part).unwrap();
                assert_eq!(part, values[range.start * width..range.end * width], "{name}: {weight}");
            }
        }
    }
    eprintln!("weights equal to the bit, by form: {seen:?}");
    for format in ["awq", "bnb_4bit", "fp8", "gptq", "int_pack", "mlx", "mxfp4", "nvfp4"] {
        assert!(seen.contains_key(format), "no weight in format {format}");
    }
}
