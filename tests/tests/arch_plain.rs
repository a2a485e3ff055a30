//! The plain reference against transformers, on every case of a supported family: in one go, in chunks, and greedy.

use crit_core::model::Model;
use crit_core::model::plain::{PlainExecutor, PlainSizes};
use crit_tests::{Case, Hand, arch_cases, argmax, difference, last_rows, supported};

fn executor(model: &Model) -> PlainExecutor {
    PlainExecutor::new(model.clone(), PlainSizes { block_tokens: 16, blocks: 12, slots: 1, max_context: 192 })
}

#[test]
fn plain_matches_transformers_on_every_case() {
    let cases: Vec<Case> = arch_cases().into_iter().filter(supported).collect();
    assert!(cases.len() >= 3, "llama, qwen3 and gemma3 are committed");
    for case in cases {
        let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let guidance = case.guidance();
        let limit = guidance["guidance"]["f32_max_abs_error"].as_f64().expect("a case states its tolerance") as f32;
        for golden in case.goldens() {
            for chunk in [golden.ids.len(), 7] {
                let mut executor = executor(&model);
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
