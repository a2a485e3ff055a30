//! Trained models against transformers: logits of the last positions of long prompts, and greedy answers token for token.

use crit_core::model::Model;
use crit_kernels::exec::{ExecOptions, Style, build};
use crit_tests::{Case, Hand, argmax, difference, folder_from_env, last_rows, skip};

fn trained() -> Vec<Case> {
    let Some(root) = folder_from_env("CRIT_MODELS") else {
        skip("trained models", "CRIT_MODELS is not set");
        return Vec::new();
    };
    let mut folders: Vec<_> = std::fs::read_dir(root).expect("the folder can be read").flatten().collect();
    folders.sort_by_key(std::fs::DirEntry::file_name);
    let case =
        |entry: &std::fs::DirEntry| Case { name: entry.file_name().to_string_lossy().into_owned(), path: entry.path() };
    folders.iter().map(case).filter(|case| case.path.join("golden.safetensors").is_file()).collect()
}

/// Greedy continuation of a prompt whose last logits are `row`.
fn greedy(hand: &mut Hand<'_>, row: &[f32], count: usize) -> Vec<u32> {
    let mut ids = vec![argmax(row)];
    while ids.len() < count {
        let row = hand.run(&ids[ids.len() - 1..], 1).pop().expect("one row");
        ids.push(argmax(&row));
    }
    ids
}

#[test]
fn exact_answers_as_transformers_does() {
    for case in trained() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for golden in case.goldens() {
            let length = golden.ids.len() + golden.greedy.len();
            let mut executor = build(&model, ExecOptions::new(Style::Exact, length, 1)).expect("it fits");
            let mut hand = Hand::new(&mut executor);
            let logits = hand.run(&golden.ids, 128);
            let rows = last_rows(&logits, &golden);
            let (largest, _) = difference(rows, &golden.logits);
            // As the random cases have it: a thousandth of the largest logit.
            let scale = golden.logits.iter().flatten().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(largest <= 1e-3 * scale, "{} {}: {largest} of {scale}", case.name, golden.suffix);
            let answer = greedy(&mut hand, &logits[logits.len() - 1], golden.greedy.len());
            assert_eq!(answer, golden.greedy, "{} {}", case.name, golden.suffix);
        }
    }
}

#[test]
fn base_answers_as_transformers_does_where_it_is_decided() {
    for case in trained() {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for golden in case.goldens() {
            let length = golden.ids.len() + golden.greedy.len();
            let mut executor = build(&model, ExecOptions::new(Style::Base, length, 1)).expect("it fits");
            let mut hand = Hand::new(&mut executor);
            let logits = hand.run(&golden.ids, 128);
            let (_, mean) = difference(last_rows(&logits, &golden), &golden.logits);
            // bf16 products and f16 keys cost these models up to 0.03 on average.
            assert!(mean <= 0.05, "{} {}: mean {mean}", case.name, golden.suffix);
            let answer = greedy(&mut hand, &logits[logits.len() - 1], golden.greedy.len());
            // Where the two best tokens are closer than errors are large, either may win; what follows is another text.
            if let Some(at) = answer.iter().zip(&golden.greedy).position(|(a, b)| a != b) {
                let margin = golden.margins[at];
                assert!(margin <= 0.1, "{} {}: token {at} differs at a margin of {margin}", case.name, golden.suffix);
            }
        }
    }
}
