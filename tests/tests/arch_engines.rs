//! The exact reference and the base engine against transformers' goldens, on every case of a supported family.

use crit_core::model::Model;
use crit_kernels::exec::{CpuExecutor, ExecOptions, Style, build};
use crit_tests::{Case, Hand, arch_cases, argmax, difference, supported};

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
            for chunk in [golden.ids.len(), 7, 1] {
                let mut executor = executor(&model, Style::Exact);
                let mut hand = Hand::new(&mut executor);
                let logits = hand.run(&golden.ids, chunk);
                let (largest, _) = difference(&logits, &golden.logits);
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
fn base_stays_within_what_bf16_costs() {
    for case in cases() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let limit = case.guidance()["guidance"]["bf16_compute_mean_abs"].as_f64().expect("stated") as f32;
        for golden in case.goldens() {
            for chunk in [golden.ids.len(), 7, 1] {
                let mut executor = executor(&model, Style::Base);
                let logits = Hand::new(&mut executor).run(&golden.ids, chunk);
                let (_, mean) = difference(&logits, &golden.logits);
                assert!(mean <= limit, "{} {} chunk {chunk}: mean {mean} > {limit}", case.name, golden.suffix);
            }
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
        for golden in case.goldens() {
            let mut executor = executor(&model, Style::Exact);
            let logits = Hand::new(&mut executor).run(&golden.ids, 64);
            let (largest, _) = difference(&logits, &golden.logits);
            assert!(largest <= limit, "{} {}: {largest} > {limit}", case.name, golden.suffix);
        }
    }
}
