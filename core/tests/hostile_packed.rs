//! Weights of several tensors whose parts do not fit each other or their settings: an answer or an error, never a panic.
//!
//! The committed case of each format has parts retyped, reshaped, cut, renamed and exchanged, and its settings changed.

use crit_core::files::{Checkpoint, DType};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A tensor of a file, with its bytes.
#[derive(Clone)]
struct Part {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

struct Case {
    config: Value,
    parts: Vec<Part>,
}

/// The committed cases, few tensors of each so that one is soon hit.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quant");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("model.safetensors").is_file());
    folders.sort();
    folders.iter().map(|folder| Case::read(folder)).collect()
});

impl Case {
    fn read(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
        let parts = header.iter().filter(|(name, _)| name.contains("layers.0.") && name.contains("_proj"));
        let parts = parts.map(|(name, entry)| {
            let offsets: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
            Part {
                name: name.clone(),
                dtype: entry["dtype"].as_str().unwrap().into(),
                shape: serde_json::from_value(entry["shape"].clone()).unwrap(),
                bytes: data[offsets[0]..offsets[1]].to_vec(),
            }
        });
        Self { config, parts: parts.collect() }
    }
}

const DTYPES: [&str; 9] = ["U8", "I8", "F8_E4M3", "F16", "BF16", "F32", "I32", "I64", "F64"];

fn change(parts: &mut [Part], which: usize, kind: u8, by: usize) {
    let count = parts.len();
    let other = parts[by % count].clone();
    let part = &mut parts[which % count];
    let size = |name: &str| DType::from_safetensors(name).unwrap().block_bytes();
    let elems = part.bytes.len() / size(&part.dtype);
    match kind {
        // The same bytes as another type.
        0 => {
            let dtype = DTYPES[by % DTYPES.len()];
            let row = part.shape.pop().unwrap_or(1) * size(&part.dtype);
            if row.is_multiple_of(size(dtype)) {
                part.shape.push(row / size(dtype));
                part.dtype = dtype.into();
            } else {
                part.shape.push(row / size(&part.dtype));
            }
        }
        1 => part.shape.reverse(),
        2 => part.shape = vec![elems],
        3 => part.shape = vec![1, elems],
        // Fewer rows.
        4 => {
            let first = part.shape.first().copied().unwrap_or(1);
            let rows = by % (first + 1);
            let row = part.bytes.len().checked_div(first).unwrap_or(0);
            part.bytes.truncate(rows * row);
            if let Some(first) = part.shape.first_mut() {
                *first = rows;
            }
        }
        5 => part.name.push_str(".gone"),
        // The content of another.
        6 => {
            let name = part.name.clone();
            *part = Part { name, ..other };
        }
        // Numbers at their extremes.
        _ => {
            let value = [0x00, 0x7f, 0x80, 0xff][by % 4];
            part.bytes.fill(value);
        }
    }
}

fn settings(config: &mut Value, key: usize, number: i64) {
    let Some(settings) = config.get_mut("quantization_config").and_then(Value::as_object_mut) else { return };
    let keys: Vec<String> = settings.iter().filter(|(_, v)| !v.is_object()).map(|(key, _)| key.clone()).collect();
    if let Some(key) = keys.get(key % keys.len().max(1)) {
        settings.insert(key.clone(), json!(number));
    }
}

fn write(folder: &Path, config: &Value, parts: &[Part]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for part in parts {
        let offsets = [data.len(), data.len() + part.bytes.len()];
        header.insert(part.name.clone(), json!({"dtype": part.dtype, "shape": part.shape, "data_offsets": offsets}));
        data.extend(&part.bytes);
    }
    let header = Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn parts_that_do_not_fit(
        case in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<usize>(), 0u8..8, any::<usize>()), 1..4),
        setting in proptest::option::weighted(0.3, (any::<usize>(), prop_oneof![-2i64..130, Just(1 << 40), Just(i64::MIN)])),
    ) {
        let case = case.get(&CASES);
        let (mut config, mut parts) = (case.config.clone(), case.parts.clone());
        for (which, kind, by) in changes {
            change(&mut parts, which, kind, by);
        }
        if let Some((key, number)) = setting {
            settings(&mut config, key, number);
        }
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config, &parts);
        if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
            for tensor in checkpoint.tensors().filter(|tensor| tensor.dtype() == DType::PACKED) {
                let mut rows = vec![0.0; tensor.elems()];
                let _ = tensor.dequant_rows(0..tensor.rows(), &mut rows);
                let _ = tensor.transposed().map(|turned| turned.to_f32().len());
            }
        }
    }
}
