//! Checkpoints that are written: random ones open and run, quantised ones give what their record says, and nothing is left
//! behind where something goes wrong.

use crit_core::export::{ExportError, Number, QuantizeOptions, SCHEMES, Scheme, SynthOptions, Target, quantize, synth};
use crit_core::files::{Checkpoint, StoredTensor};
use crit_core::model::Model;
use crit_core::text::Tokenizer;
use crit_kernels::exec::{ExecOptions, Style, build};
use crit_tests::{Hand, fixtures};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn case(name: &str) -> PathBuf {
    fixtures().join("arch").join(name)
}

fn options(target: Target) -> SynthOptions {
    SynthOptions { target, number: Number::Bf16, seed: 7, threads: Some(2) }
}

fn logits(model: &Model) -> Vec<f32> {
    let mut executor = build(model, ExecOptions::new(Style::Exact, 64, 1)).unwrap_or_else(|error| panic!("{error}"));
    Hand::new(&mut executor).run(&[5, 9, 11], 3).concat()
}

#[test]
fn synthetic_checkpoints_open_run_and_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen3", "gemma3"] {
        let config = case(name).join("config.json");
        for (target, out) in [(Target::Safetensors, name.to_string()), (Target::Gguf, format!("{name}.gguf"))] {
            let out = folder.path().join(out);
            synth(&config, &out, &options(target), &|_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
            let model = Model::open(&out).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
            assert!(model.checkpoint.is_synthetic(), "{}", out.display());
            assert!(logits(&model).iter().all(|value| value.is_finite()), "{}", out.display());
            let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap();
            assert!(!tokenizer.encode("abc", true).unwrap().is_empty());
        }
        // The real checkpoint has the same tensors of the same shapes.
        let (real, made) =
            (Checkpoint::open(&case(name)).unwrap(), Checkpoint::open(&folder.path().join(name)).unwrap());
        let shapes = |checkpoint: &Checkpoint| -> BTreeSet<(String, Vec<usize>)> {
            checkpoint.tensors().map(|tensor| (tensor.name().to_string(), tensor.shape().to_vec())).collect()
        };
        assert_eq!(shapes(&real), shapes(&made), "{name}");
        assert!(!real.is_synthetic());
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, seed, threads| {
        let out = folder.path().join(name);
        let options = SynthOptions { seed, threads: Some(threads), ..options(Target::Gguf) };
        synth(&case("qwen3"), &out, &options, &|_, _| {}).unwrap();
        std::fs::read(out).unwrap()
    };
    let one = write("a.gguf", 1, 1);
    assert!(one == write("b.gguf", 1, 3));
    assert!(one != write("c.gguf", 2, 1));
}

/// A GGUF file written from a checkpoint against the checkpoint itself: names, order of rows and folded values.
#[test]
fn plain_gguf_files_give_the_logits_of_their_source() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["gemma3", "llama", "qwen3"] {
        let out = folder.path().join(format!("{name}.gguf"));
        let scheme = Scheme::find("bf16").unwrap();
        let made = quantize(&case(name), scheme, &out, &QuantizeOptions { threads: Some(2) }, &|_, _| {})
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(made.tensors.iter().all(|note| note.relative_error < 1e-6), "bf16 holds bf16: {name}");
        let (source, written) = (Model::open(&case(name)).unwrap(), Model::open(&out).unwrap());
        let (a, b) = (logits(&source), logits(&written));
        let largest = a.iter().fold(0f32, |m, v| m.max(v.abs()));
        let off = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // The same values in another order of rows: sums differ by their rounding.
        assert!(off <= 1e-5 * largest, "{name}: {off} of {largest}");
        assert_eq!(source.checkpoint.eos_ids(), written.checkpoint.eos_ids(), "{name}");
        let text = "The quick brown fox, 12 345 times; \u{e9}t\u{e9}\n  twice.";
        let ids = |model: &Model| Tokenizer::from_checkpoint(&model.checkpoint).unwrap().encode(text, true).unwrap();
        assert_eq!(ids(&source), ids(&written), "{name}");
        assert!(folder.path().join(format!("{name}.crit-transform.json")).is_file());
    }
}

#[test]
fn every_scheme_writes_what_its_record_says() {
    let folder = tempfile::tempdir().unwrap();
    for scheme in SCHEMES {
        // A GGUF file needs a tokenizer; groups and blocks of 128 need rows that long.
        let (source, out) = match scheme.container() {
            "gguf" => (case("qwen3"), format!("{}.gguf", scheme.name)),
            _ => (fixtures().join("quant/mlx-mixed"), scheme.name.to_string()),
        };
        let (reference, out) = (Checkpoint::open(&source).unwrap(), folder.path().join(out));
        let run = || quantize(&source, scheme, &out, &QuantizeOptions { threads: Some(2) }, &|_, _| {});
        let made = run().unwrap_or_else(|error| panic!("{}: {error}", scheme.name));
        let written = Model::open(&out).unwrap_or_else(|error| panic!("{}: {error}", scheme.name)).checkpoint;
        let mut compared = 0;
        for note in &made.tensors {
            let is_it = |tensor: &&StoredTensor| tensor.stored_name() == note.name || tensor.name() == note.name;
            let tensor = written.tensors().find(is_it).unwrap_or_else(|| panic!("{}: {}", scheme.name, note.name));
            let (a, b) = (reference.tensor(tensor.name()).unwrap().to_f32(), tensor.to_f32());
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
            let error = square(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / square(&mut a.iter().copied());
            let off = (error.sqrt() - note.relative_error).abs();
            // The record is of the values as they are read, so only the order of sums differs.
            assert!(off < 1e-6, "{} {}: {} read, {} stated", scheme.name, note.name, error.sqrt(), note.relative_error);
            compared += 1;
        }
        assert!(compared > 10, "{}", scheme.name);
        assert!(matches!(run(), Err(ExportError::Exists { .. })), "nothing is overwritten");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn a_config_of_no_family_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    std::fs::write(&config, r#"{"model_type": "abacus"}"#).unwrap();
    let out = folder.path().join("out");
    let error = synth(&config, &out, &options(Target::Safetensors), &|_, _| {}).unwrap_err();
    assert!(error.to_string().contains("abacus"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
