//! Tests of the n-gram drafter.

use super::*;
use crit_kernels::plugin::conformance;

fn drafter(options: &str) -> Box<dyn Drafter> {
    match conformance::made(&PLUGIN, options).unwrap() {
        Instance::Drafter(drafter) => drafter,
        _ => panic!("not a drafter"),
    }
}

#[test]
fn keeps_the_contract() {
    conformance::check(&PLUGIN).unwrap();
}

#[test]
fn proposes_what_followed_the_longest_and_newest_match() {
    let mut drafter = drafter(r#"{"min_ngram": 2, "adaptive": false, "draft_tokens": 3}"#);
    // `1 2 3` was followed by 40, `2 3` alone later by 50: the longer match wins.
    let text = [1, 2, 3, 40, 41, 42, 9, 2, 3, 50, 51, 52, 1, 2, 3];
    assert_eq!(drafter.propose(1, &text, 8).tokens, [40, 41, 42]);
    // Equal matches: the newest wins.
    let text = [2, 3, 40, 41, 42, 9, 2, 3, 50, 51, 52, 7, 2, 3];
    assert_eq!(drafter.propose(2, &text, 8).tokens, [50, 51, 52]);
    // Nothing before: nothing proposed.
    assert!(drafter.propose(3, &[1, 2, 3, 4, 5], 8).tokens.is_empty());
}

#[test]
fn a_repeated_phrase_is_continued_past_the_end() {
    let mut drafter = drafter(r#"{"min_ngram": 1, "adaptive": false, "draft_tokens": 5}"#);
    assert_eq!(drafter.propose(1, &[7, 8, 7, 8, 7], 8).tokens, [8, 7, 8, 7, 8]);
}

#[test]
fn growing_and_whole_texts_give_the_same_draft() {
    let text: Vec<u32> = (0..400u32).map(|i| (i * i / 7) % 11).collect();
    let mut growing = drafter(r#"{"adaptive": false}"#);
    for end in 1..text.len() {
        let mut fresh = drafter(r#"{"adaptive": false}"#);
        assert_eq!(growing.propose(1, &text[..end], 8), fresh.propose(1, &text[..end], 8), "after {end} tokens");
    }
}

#[test]
fn rejections_pause_and_acceptance_lengthens() {
    let mut drafter = drafter(r#"{"min_ngram": 1, "draft_tokens": 16}"#);
    let text: Vec<u32> = (0..10).cycle().take(100).collect();
    let lengths: Vec<usize> = (0..4)
        .map(|_| {
            let draft = drafter.propose(1, &text, 16);
            drafter.accepted(1, draft.tokens.len(), draft.tokens.len());
            draft.tokens.len()
        })
        .collect();
    assert_eq!(lengths, [4, 8, 16, 16]);
    let mut proposals = 0;
    for _ in 0..100 {
        let draft = drafter.propose(1, &text, 16);
        proposals += draft.tokens.len();
        drafter.accepted(1, draft.tokens.len(), 0);
    }
    assert!(proposals < 16 + 10, "{proposals} tokens proposed in vain");
}
