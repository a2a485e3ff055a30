//! The CUDA backend against the exact reference on the CPU: prompts in one go, in pieces and step by step, captured and not,
//! alone and in batches, with every strategy and with none. Skipped, saying why, where there is no GPU.
#![allow(clippy::print_stdout)]

use crit_core::export::{Number, QuantizeOptions, Scheme, SynthOptions, Target, quantize, synth};
use crit_core::model::Model;
use crit_core::runtime::{Executor, StepBatch};
use crit_kernels::backend::cuda::{CudaExecutor, CudaOptions, Strategy, build, devices};
use crit_kernels::exec::{self, ExecOptions, Style};
use std::path::{Path, PathBuf};

const CONTEXT: usize = 512;

fn gpu() -> bool {
    match devices() {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// Committed models whose ops all have kernels.
fn fixtures() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let root = if own.exists() { own } else { PathBuf::from("tests/fixtures") };
    let names = [
        "gemma2",
        "gemma3",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
    ];
    let mut out: Vec<_> = names
        .map(|name| root.join("arch").join(name))
        .into_iter()
        .filter(|path| path.join("config.json").exists())
        .collect();
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3");
    out.extend(Some(embedded).filter(|path| path.exists()));
    out.extend(std::env::var_os("CRIT_MODELS").map(PathBuf::from).into_iter().flat_map(|root| {
        ["tiny-qwen3", "tiny-qwen3-moe"]
            .map(|name| root.join(name))
            .into_iter()
            .filter(|path| path.exists())
            .collect::<Vec<_>>()
    }));
    out
}

fn ids(n: usize, vocab: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(97)) >> 7) % vocab as u32)
        .collect()
}

/// Logits of every position, the tokens given in steps of these sizes (the last one repeats).
fn run(executor: &mut dyn Executor, ids: &[u32], sizes: &[usize], slot: u32) -> Vec<f32> {
    let (vocab, per) = (executor.info().vocab, CONTEXT / 16);
    let blocks: Vec<u32> = (0..per as u32).map(|i| slot * per as u32 + (i * 7 + 3) % per as u32).collect();
    let (mut out, mut logits, mut past, mut turn) = (Vec::new(), Vec::new(), 0, 0);
    while past < ids.len() {
        let n = sizes[turn.min(sizes.len() - 1)].min(ids.len() - past);
        let mut batch = StepBatch::default();
        batch.push(&ids[past..past + n], past as u32, blocks.clone(), slot, 0..n as u32);
        batch.known(90);
        executor.step(&batch, &mut logits).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(logits.len(), n * vocab);
        out.extend_from_slice(&logits);
        past += n;
        turn += 1;
    }
    out
}

/// Root mean square of the difference over that of the wanted.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let sum = |f: &dyn Fn(usize) -> f64| (0..got.len()).map(|i| f(i).powi(2)).sum::<f64>().sqrt();
    let diff = sum(&|i| f64::from(got[i]) - f64::from(want[i]));
    let size = sum(&|i| f64::from(want[i]));
    if diff.is_finite() { diff / size } else { f64::INFINITY }
}

fn cuda(model: &Model, strategies: &[Strategy]) -> CudaExecutor {
    let options =
        CudaOptions { strategies: strategies.to_vec(), max_step_tokens: 512, ..CudaOptions::new(CONTEXT, 20) };
    build(model, &options).unwrap_or_else(|e| panic!("{e}"))
}

fn all() -> Vec<Strategy> {
    Strategy::ALL.iter().map(|(_, strategy)| *strategy).collect()
}

/// bf16 activations round by up to 2^-9; over the few layers of these models that grows to a few times as much.
const TOLERANCE: f64 = 0.03;

/// The error over all rows; where experts are chosen, that of the middle row, since a choice between two that are as good as equal
/// may fall the other way.
fn row_error(got: &[f32], want: &[f32], vocab: usize, chosen: bool) -> f64 {
    if !chosen {
        return error(got, want);
    }
    let mut errors: Vec<f64> = got.chunks(vocab).zip(want.chunks(vocab)).map(|(got, want)| error(got, want)).collect();
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

fn compare(name: &str, path: &Path, failures: &mut Vec<String>) {
    let model = Model::open(path).unwrap_or_else(|e| panic!("{name}: {e}")).without_draft();
    let options = ExecOptions::new(Style::Exact, CONTEXT, 1);
    let mut exact = exec::build(&model, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let prompt = ids(90, exact.info().vocab, 5);
    let want = run(&mut exact, &prompt, &[90], 0);
    let mut wrong = Vec::new();
    let vocab = exact.info().vocab;
    let chosen = model.program.nodes(model.program.step()).any(|(_, node)| node.op.name() == "moe_route");
    let error = |got: &[f32], want: &[f32]| row_error(got, want, vocab, chosen);
    let mut note = |way: &str, error: f64| {
        println!("{name}: {way}: {error:.5}");
        if error > TOLERANCE {
            wrong.push(format!("{name}: {way}: {error:.5}"));
        }
    };
    let mut engine = cuda(&model, &all());
    note("one go", error(&run(&mut engine, &prompt, &[90], 0), &want));
    note("pieces of 7", error(&run(&mut engine, &prompt, &[7], 1), &want));
    note("pieces of 33 and 3", error(&run(&mut engine, &prompt, &[33, 3, 2, 4, 20], 2), &want));
    let stepped = run(&mut engine, &prompt, &[1], 3);
    note("step by step", error(&stepped, &want));
    let again = run(&mut engine, &prompt, &[1], 4);
    if again != stepped {
        note("the same steps gave other bits", f64::INFINITY);
    }
    for width in [2usize, 3, 5, 16] {
        // One sequence continues in the company of others that have other contexts.
        let per = CONTEXT / 16;
        let blocks = |slot: usize| (0..per as u32).map(|i| (slot * per) as u32 + i).collect::<Vec<_>>();
        let mut logits = Vec::new();
        for slot in 0..width {
            let mut batch = StepBatch::default();
            let n = 40 + slot;
            batch.push(&prompt[..n], 0, blocks(slot), slot as u32, [n as u32 - 1]);
            batch.known(90);
            engine.step(&batch, &mut logits).unwrap();
        }
        let mut batch = StepBatch::default();
        for slot in 0..width {
            let n = 40 + slot;
            batch.push(&prompt[n..n + 1], n as u32, blocks(slot), slot as u32, [0]);
            batch.known(90);
        }
        // Twice: once outside a graph, once captured.
        for _ in 0..2 {
            engine.step(&batch, &mut logits).unwrap();
            let wanted: Vec<f32> =
                (0..width).flat_map(|slot| stepped[(40 + slot) * vocab..(41 + slot) * vocab].to_vec()).collect();
            note(&format!("batch of {width}"), error(&logits, &wanted));
        }
    }
    // A sequence goes on in a copy of its blocks.
    run(&mut engine, &prompt[..40], &[40], 5);
    let per = CONTEXT as u32 / 16;
    let from = |i: u32| 5 * per + (i * 7 + 3) % per;
    (0..3).for_each(|i| engine.copy_block(from(i), 6 * per + i).unwrap());
    let mut batch = StepBatch::default();
    batch.push(&prompt[40..41], 40, (0..per).map(|i| 6 * per + i).collect(), 6, [0]);
    batch.known(90);
    let mut logits = Vec::new();
    engine.step(&batch, &mut logits).unwrap();
    note("copied blocks", error(&logits, &stepped[40 * vocab..41 * vocab]));
    drop(engine);
    let mut base = cuda(&model, &[]);
    note("base, one go", error(&run(&mut base, &prompt, &[90], 0), &want));
    note("base, step by step", error(&run(&mut base, &prompt, &[1], 1), &want));
    failures.extend(wrong);
}

#[test]
fn committed_models_match_the_exact_reference() {
    if !gpu() {
        return;
    }
    let mut failures = Vec::new();
    for path in fixtures() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        compare(&name, &path, &mut failures);
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Name, whether a GGUF file can say it, config.
const SHAPES: &[(&str, bool, &str)] = &[
    (
        "heads of 128",
        true,
        r#"{"model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": false}"#,
    ),
    (
        "heads of 64, 20 to one",
        true,
        r#"{"model_type": "llama", "hidden_size": 1280, "intermediate_size": 768, "num_hidden_layers": 2,
        "num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
    ),
    (
        "windows, heads of 256",
        false,
        r#"{"model_type": "gemma3_text", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 768, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 20, "sliding_window_pattern": 2, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh"}"#,
    ),
];

#[test]
fn synthetic_models_match_in_every_form() {
    if !gpu() {
        return;
    }
    let mut failures = Vec::new();
    for (name, gguf, config) in SHAPES {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, config).unwrap();
        let plain = folder.path().join("plain");
        let options = SynthOptions { target: Target::Safetensors, number: Number::Bf16, seed: 3, threads: None };
        synth(&file, &plain, &options, &|_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
        compare(name, &plain, &mut failures);
        for scheme in ["q8_0", "q4_k_m", "q6_k"].into_iter().filter(|_| *gguf) {
            let Some(scheme) = Scheme::find(scheme) else { panic!("no scheme {scheme}") };
            let out = folder.path().join(format!("{}.gguf", scheme.name));
            quantize(&plain, scheme, &out, &QuantizeOptions { threads: None }, &|_, _| {})
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            compare(&format!("{name}, {}", scheme.name), &out, &mut failures);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn memory_comes_back_and_what_does_not_fit_is_refused() {
    if !gpu() {
        return;
    }
    let Some(path) = fixtures().into_iter().next() else { return };
    let model = Model::open(&path).unwrap();
    drop(cuda(&model, &all()));
    let device = crit_kernels::backend::cuda::Device::open(0).unwrap();
    let (before, all_bytes) = device.memory().unwrap();
    for _ in 0..5 {
        let mut engine = cuda(&model, &all());
        let vocab = engine.info().vocab;
        run(&mut engine, &ids(5, vocab, 1), &[1], 0);
        // Elsewhere than where it was made.
        std::thread::spawn(move || drop(engine)).join().unwrap();
    }
    let (after, _) = device.memory().unwrap();
    assert!(before.saturating_sub(after) < 64 << 20, "{before} bytes free before, {after} after");
    let blocks = (all_bytes / 16) as usize;
    let refused = build(&model, &CudaOptions { blocks, ..CudaOptions::new(CONTEXT, 1) }).err().unwrap().to_string();
    assert!(refused.contains("are free"), "{refused}");
    let mut engine = cuda(&model, &all());
    let mut batch = StepBatch::default();
    batch.push(&[1], CONTEXT as u32, (0..33).collect(), 0, [0]);
    let refused = engine.step(&batch, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("context"), "{refused}");
}
