//! The exact reference and the base engine against transformers' goldens, on every case of a supported family.

use crit_core::model::Model;
use crit_core::runtime::{Executor, StepBatch};
use crit_kernels::exec::{CpuExecutor, ExecOptions, Style, build};
use crit_tests::{Case, Golden, Hand, arch_cases, argmax, difference, last_rows, supported};

fn executor(model: &Model, style: Style) -> CpuExecutor {
    build(model, ExecOptions::new(style, 192, 1)).unwrap_or_else(|e| panic!("{e}"))
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = arch_cases().into_iter().filter(supported).collect();
    assert!(cases.len() >= 3, "llama, qwen3 and gemma3 are committed");
    cases
}

#[test]
fn exact_matches_transformers_in_one_go_in_chunks_and_greedy() {
    for case in cases() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let limit = case.guidance()["guidance"]["f32_max_abs_error"].as_f64().expect("stated") as f32;
        for golden in case.goldens() {
            for chunk in [golden.ids.len(), 64, 7, 1] {
                let mut executor = executor(&model, Style::Exact);
                let mut hand = Hand::new(&mut executor);
                let logits = hand.run(&golden.ids, chunk);
                let (largest, _) = difference(last_rows(&logits, &golden), &golden.logits);
                assert!(largest <= limit, "{} {} chunk {chunk}: {largest} > {limit}", case.name, golden.suffix);
                let mut greedy = vec![argmax(&logits[logits.len() - 1])];
                while greedy.len() < golden.greedy.len() {
                    let row = hand.run(&greedy[greedy.len() - 1..], 1).pop().expect("one row");
                    greedy.push(argmax(&row));
                }
                assert_eq!(greedy, golden.greedy, "{} {}", case.name, golden.suffix);
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_batch_mates() {
    for case in cases() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let ids = case.goldens().pop().expect("a case has inputs").ids;
        let prompts = [&ids[..3], &ids[..], &ids[..37], &ids[10..11]];
        for style in [Style::Exact, Style::Base] {
            let mut executor = build(&model, ExecOptions::new(style, 192, prompts.len())).expect("it was built before");
            let mut batch = StepBatch::default();
            for (i, prompt) in prompts.iter().enumerate() {
                let blocks = (12 * i as u32..12 * (i as u32 + 1)).collect();
                batch.push(prompt, 0, blocks, i as u32, 0..prompt.len() as u32);
            }
            let mut together = Vec::new();
            executor.step(&batch, &mut together).expect("the step fits");
            let mut together = together.chunks(executor.info().vocab).map(<[f32]>::to_vec);
            for prompt in prompts {
                let alone = Hand::new(&mut self::executor(&model, style)).run(prompt, prompt.len());
                let own: Vec<Vec<f32>> = together.by_ref().take(prompt.len()).collect();
                // Sums of a row have one order whatever else is in the step, so nothing may differ.
                assert!(own == alone, "{} {style:?}: a prompt of {}", case.name, prompt.len());
            }
        }
    }
}

fn has_experts(model: &Model) -> bool {
    model.program.blocks.iter().flat_map(|block| &block.ops).any(|node| node.op.name() == "moe_experts")
}

/// That logits of both inputs differ from the reference's as much as computing in bf16 makes them, on average.
fn assert_within_bf16(case: &Case, model: &Model, what: &str, logits: &[Vec<f32>], expected: &[Vec<f32>]) {
    // The guidance is the mean over both inputs.
    let limit = case.guidance()["guidance"]["bf16_compute_mean_abs"].as_f64().expect("stated") as f32;
    let (_, mean) = difference(logits, expected);
    if mean > limit && has_experts(model) {
        // A tiny change can choose another expert, and then a position differs as much as logits are large; how
        // many do so is chance, the rest must be as close as anywhere.
        let close = |(a, b): &(&Vec<f32>, &Vec<f32>)| a.iter().zip(*b).all(|(a, b)| (a - b).abs() <= 0.5);
        let share = logits.iter().zip(expected).filter(close).count() as f32 / expected.len() as f32;
        assert!(share >= 0.9, "{} {what}: mean {mean}, {share} of positions within 0.5", case.name);
        return;
    }
    assert!(mean <= limit, "{} {what}: mean {mean} > {limit}", case.name);
}

#[test]
fn base_stays_within_what_bf16_costs() {
    for case in cases() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let goldens = case.goldens();
        let expected: Vec<Vec<f32>> = goldens.iter().flat_map(|golden| golden.logits.clone()).collect();
        for chunk in [usize::MAX, 64, 7, 1] {
            let run = |golden: &Golden| {
                let logits = Hand::new(&mut executor(&model, Style::Base)).run(&golden.ids, chunk);
                last_rows(&logits, golden).to_vec()
            };
            let logits: Vec<Vec<f32>> = goldens.iter().flat_map(run).collect();
            assert_within_bf16(&case, &model, &format!("chunk {chunk}"), &logits, &expected);
        }
    }
}

#[test]
fn gguf_twins_give_the_same_logits() {
    let twins: Vec<Case> = cases().into_iter().filter(|case| case.path.join("model-bf16.gguf").is_file()).collect();
    assert!(!twins.is_empty(), "a twin is committed");
    for case in twins {
        let model = Model::open(&case.path.join("model-bf16.gguf")).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let limit = case.guidance()["guidance"]["f32_max_abs_error"].as_f64().expect("stated") as f32;
        let goldens = case.goldens();
        let run = |golden: &Golden| {
            let logits = Hand::new(&mut executor(&model, Style::Exact)).run(&golden.ids, 64);
            last_rows(&logits, golden).to_vec()
        };
        let logits: Vec<Vec<f32>> = goldens.iter().flat_map(run).collect();
        let expected: Vec<Vec<f32>> = goldens.iter().flat_map(|golden| golden.logits.clone()).collect();
        // The converter has no 8-bit floats and rounds such weights to Q8_0, whose step is about that of bf16.
        if model.checkpoint.bytes_by_dtype().keys().any(|dtype| dtype.name() == "Q8_0") {
            assert_within_bf16(&case, &model, "GGUF", &logits, &expected);
            continue;
        }
        let (largest, _) = difference(&logits, &expected);
        assert!(largest <= limit, "{}: {largest} > {limit}", case.name);
    }
}
