//! Quantised types and GGUF configurations against what the reference implementation reads from the same files.
//!
//! Quantised types need the full fixture set: a folder in `CRIT_FIXTURES` with `quant/gguf-*/`.
#![allow(clippy::print_stderr)]

use crit_core::digest::Digest;
use crit_core::files::{Checkpoint, DType, StoredTensor};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixtures() -> Option<PathBuf> {
    let found = std::env::var_os("CRIT_FIXTURES").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: CRIT_FIXTURES names no folder with the full fixture set");
    }
    found
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/arch")
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut out: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    out.sort();
    out
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn in_plain_order(tensor: &StoredTensor, checkpoint: &Checkpoint) -> Vec<f32> {
    checkpoint.values_in_plain_order(tensor).unwrap()
}

#[test]
fn gguf_types_are_exact_to_the_bit() {
    let Some(root) = fixtures() else { return };
    let mut compared = std::collections::BTreeMap::<String, usize>::new();
    for folder in folders(&root.join("quant")) {
        let gguf = folder.join("model.gguf");
        if !gguf.is_file() {
            continue;
        }
        let checkpoint = Checkpoint::open(&gguf).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let golden = read(&folder.join("golden.json"));
        for (name, facts) in golden["all_weights"].as_object().unwrap() {
            let Some(tensor) = checkpoint.tensor(name) else {
                panic!("{}: no {name}", folder.display());
            };
            let values = in_plain_order(tensor, &checkpoint);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let shape: Vec<usize> = serde_json::from_value(facts["shape"].clone()).unwrap();
            assert_eq!(tensor.shape(), shape, "{}: {name}", folder.display());
            let digest = Digest::of(&bytes).to_string();
            assert_eq!(
                digest,
                facts["sha256_f32le"].as_str().unwrap(),
                "{}: {name} ({})",
                folder.display(),
                tensor.dtype()
            );
            *compared.entry(tensor.dtype().to_string()).or_default() += 1;
        }
    }
    eprintln!("tensors equal to the bit: {compared:?}");
    // Activation types, and the integers, are in no file of weights.
    for dtype in DType::all().filter(|dtype| dtype.format().gguf_id.is_some()) {
        let is_none = ["F64", "I16", "I32", "I64", "I8", "Q8_1", "Q8_K"].contains(&dtype.name());
        assert!(is_none || compared.contains_key(dtype.name()), "no tensor of type {dtype}");
    }
}

/// The keys that decide what a model computes. Where a config.json leaves one out or writes it in the newer form, the
/// twin need not have it.
const KEYS: &[&str] = &[
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_local_base_freq",
    "rope_theta",
    "rope_scaling",
    "sliding_window",
    "sliding_window_pattern",
    "query_pre_attn_scalar",
    "hidden_activation",
    "attention_bias",
    "mlp_bias",
];

#[test]
fn gguf_twins_have_the_same_configuration_and_values() {
    let mut cases: Vec<_> = ["gemma3", "llama"].map(|case| committed().join(case)).into();
    let more = ["qwen2", "qwen3"];
    cases.extend(fixtures().into_iter().flat_map(|root| more.map(|case| root.join("arch").join(case))));
    for folder in cases {
        let case = folder.file_name().unwrap().to_str().unwrap();
        let plain = Checkpoint::open(&folder).unwrap();
        let twin = Checkpoint::open(&folder.join("model-bf16.gguf")).unwrap();
        let (want, got) = (plain.config().unwrap(), twin.config().unwrap());
        for key in KEYS.iter().filter(|key| want.has(key)) {
            let want = want.get(key).unwrap();
            // Families without biases do not say so in their metadata, and qwen2's window is not stored.
            if *want == false || (*key == "sliding_window" && case == "qwen2") {
                continue;
            }
            assert_eq!(got.get(key), Some(want), "{case}: {key}");
        }
        let theta = want.opt_object("rope_parameters").unwrap().map(|rope| rope.f64("rope_theta").unwrap());
        assert!(theta.is_none_or(|theta| theta == got.f64("rope_theta").unwrap()), "{case}");
        assert_eq!(plain.eos_ids(), twin.eos_ids(), "{case}");
        assert_eq!(plain.bos_id(), twin.bos_id(), "{case}");
        assert_eq!(plain.generation(), twin.generation(), "{case}");
        for tensor in plain.tensors() {
            let other = twin.tensor(tensor.name()).unwrap_or_else(|| panic!("{case}: no {}", tensor.name()));
            assert_eq!(tensor.shape(), other.shape(), "{case}: {}", tensor.name());
            let (want, got) = (tensor.to_f32(), in_plain_order(other, &twin));
            let is_norm = tensor.name().contains("norm");
            let offsets = if is_norm {
                (plain.storage().norm_weight_offset, twin.storage().norm_weight_offset)
            } else {
                (0.0, 0.0)
            };
            let same = want.iter().zip(&got).all(|(want, got)| want + offsets.0 == got + offsets.1);
            assert!(same, "{case}: values of {}", tensor.name());
        }
    }
}

#[test]
fn the_facts_of_a_checkpoint() {
    let open = |case: &str| Checkpoint::open(&committed().join(case)).unwrap();
    let gemma = open("gemma3");
    assert_eq!(gemma.eos_ids().iter().copied().collect::<Vec<_>>(), [1, 5]);
    assert!(matches!(gemma.head("lm_head.weight", "model.embed_tokens.weight"), Ok(crit_core::files::Head::Tied(_))));
    let llama = open("llama");
    assert!(matches!(llama.head("lm_head.weight", "model.embed_tokens.weight"), Ok(crit_core::files::Head::Own(_))));
    assert!(llama.head("none.weight", "model.embed_tokens.weight").is_err(), "the config says that it is not tied");
    assert_eq!(llama.generation().top_k, Some(20));
    // Sharded: every tensor of the index, whatever the shard; the manifest lists all files that were read.
    let qwen = open("qwen3");
    let index = read(&committed().join("qwen3/model.safetensors.index.json"));
    assert_eq!(qwen.tensors().len(), index["weight_map"].as_object().unwrap().len());
    let names: Vec<_> = qwen.manifest().unwrap().files.iter().map(|file| file.name.as_str()).collect();
    assert!(names.contains(&"model-00002-of-00003.safetensors") && names.contains(&"config.json"), "{names:?}");
}

#[test]
fn the_text_model_of_a_wrapper() {
    let Some(root) = fixtures() else { return };
    let wrapped = Checkpoint::open(&root.join("arch/qwen3_5_vl")).unwrap();
    assert!(wrapped.tensor("model.embed_tokens.weight").is_some());
    assert_eq!(wrapped.model_type().unwrap(), "qwen3_5_text");
}
