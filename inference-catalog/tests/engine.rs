//! Engines with plugins, in this process, on the embedded model: what a plugin may change and what not.

use crit_catalog::entries::kv_q8;
use crit_catalog::host::{ExecutorKind, HostError, check_fit};
use crit_catalog::{CATALOG, build_engine};
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::model::Model;
use crit_core::plugin::{Assembly, resolve};
use crit_core::protocol::{Generate, Usage};
use crit_core::runtime::Event;
use std::path::PathBuf;

fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3")
}

fn assembly(plugins: &str) -> Assembly {
    let plugins = serde_json::from_str(plugins).unwrap();
    Assembly { context: Some(256), max_batch: 2, plugins, ..Assembly::base(tiny()) }
}

/// What came of a request: tokens, their log-probs, and what it took.
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    usage: Usage,
}

/// Answers to `prompts`, one after the other, by one engine.
fn answers(assembly: &Assembly, kind: ExecutorKind, prompts: &[Vec<u32>]) -> Vec<Answer> {
    let model = Model::open(&assembly.model).unwrap();
    let mut engine = build_engine(assembly, model, &[], kind).unwrap().engine;
    let mut answers = Vec::new();
    for prompt in prompts {
        let sampling = Default::default();
        let stop_ids = Vec::new();
        let generate = Generate { prompt: prompt.clone(), sampling, max_tokens: 40, stop_ids, top_logprobs: Some(0) };
        engine.submit(generate).unwrap();
        let mut events = Vec::new();
        while engine.step_once(&mut events) {}
        let mut answer = Answer { tokens: Vec::new(), logprobs: Vec::new(), usage: Usage::default() };
        for event in events {
            match event {
                Event::Tokens { tokens, logprobs, .. } => {
                    answer.tokens.extend(tokens);
                    answer.logprobs.extend(logprobs.iter().map(|l| l.logprob));
                }
                Event::Finished { usage, .. } => answer.usage = usage,
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        answers.push(answer);
    }
    answers
}

/// A prompt with repeats, the same again, and some with nothing in common.
fn prompts() -> Vec<Vec<u32>> {
    let repeats: Vec<u32> = (40..48).cycle().take(90).collect();
    let other = |seed: u32| (0..60).map(|i| 100 + (i * i * 7 + seed * 131) % 900).collect();
    vec![repeats.clone(), repeats, other(1), other(2)]
}

#[test]
fn a_plugin_that_says_so_leaves_every_token_as_it_is() {
    let base = answers(&assembly("[]"), ExecutorKind::Base, &prompts());
    for plugin in CATALOG {
        let manifest = plugin.manifest().unwrap();
        // The model has no drafting head; the entry's own test has one that does. Other backends have tests of theirs.
        if manifest.name == "draft_head" || !manifest.backends.iter().any(|backend| backend == "cpu") {
            continue;
        }
        let with = answers(&assembly(&format!(r#"[{{"name": "{}"}}]"#, manifest.name)), ExecutorKind::Base, &prompts());
        for (with, base) in with.iter().zip(&base) {
            // The first token of each prompt has the same past in both.
            let off = (with.logprobs[0] - base.logprobs[0]).abs();
            if manifest.changes_output {
                // 8-bit rows or weights move logits of this model by some hundredths; a wrong kernel by whole nats.
                assert!(off < 0.2, "{}: the first log-prob is {off} off", manifest.name);
            } else {
                assert_eq!(with.tokens, base.tokens, "{}", manifest.name);
            }
        }
    }
}

#[test]
fn plugins_do_what_they_are_for_together() {
    let all = r#"[{"name": "ngram_drafter"}, {"name": "prefix_cache"}, {"name": "kv_q8"}, {"name": "weights_q8"}]"#;
    let with = answers(&assembly(all), ExecutorKind::Base, &prompts());
    assert!(with[0].usage.accepted_tokens > 0, "the drafter's tokens are accepted: {:?}", with[0].usage);
    assert!(with[1].usage.cached_tokens >= 80, "the beginning is not computed twice: {:?}", with[1].usage);
    assert_eq!(with[1].tokens, with[0].tokens, "nor does that change a token");
    let model = Model::open(&tiny()).unwrap();
    let info = |plugins| {
        let built = build_engine(&assembly(plugins), model.clone(), &[], ExecutorKind::Base).unwrap();
        built.engine.executor().info().clone()
    };
    let (base, small) = (info("[]"), info(all));
    assert!(small.memory.state_bytes * 10 < base.memory.state_bytes * 6, "{:?} {:?}", small.memory, base.memory);
    let stored =
        |info: &crit_core::runtime::ExecutorInfo| info.stored_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(stored(&small) < stored(&base), "a ceiling counts the packed bytes");
}

#[test]
fn judges_run_without_plugins_and_agree() {
    let prompts = &prompts()[..1];
    let exact = answers(&assembly(r#"[{"name": "weights_q8"}]"#), ExecutorKind::Exact, prompts);
    let plain = answers(&assembly("[]"), ExecutorKind::Plain, prompts);
    assert_eq!(exact[0].tokens, plain[0].tokens);
    assert!(exact[0].logprobs.iter().zip(&plain[0].logprobs).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn what_cannot_be_built_says_why() {
    let model = Model::open(&tiny()).unwrap();
    let refuse = |assembly: &Assembly| -> HostError {
        match build_engine(assembly, model.clone(), &[], ExecutorKind::Base) {
            Ok(_) => panic!("it builds"),
            Err(error) => error,
        }
    };
    let slip = refuse(&assembly(r#"[{"name": "kv_q9"}]"#));
    assert_eq!(slip.hint().unwrap(), "did you mean `kv_q8`?");
    let value = refuse(&assembly(r#"[{"name": "kv_q8", "options": {"scale_per": "7"}}]"#)).to_string();
    assert!(value.contains("one of row, 64, 32"), "{value}");
    let both = refuse(&assembly(r#"[{"name": "ngram_drafter", "options": {"min_ngram": 9, "max_ngram": 2}}]"#));
    assert!(both.to_string().contains("min_ngram 9 is above max_ngram 2"), "{both}");
    let free = |bytes: u64, plugins: &str| {
        let assembly = assembly(plugins);
        let chosen = resolve(&assembly, &[&kv_q8::PLUGIN.manifest().unwrap()]).unwrap();
        check_fit(&assembly, &chosen, &model, Some(bytes)).map_err(|error| error.to_string())
    };
    let weights: u64 = model.checkpoint.tensors().map(|tensor| tensor.bytes().len() as u64).sum();
    // Two sequences of 256 tokens, keys and values of 16 bits.
    let needed = weights + 2 * 256 * model.program.kv_bytes_per_token(|dim| dim * 2) as u64;
    assert_eq!(free(needed, "[]"), Ok(()));
    let short = free(needed - 1, "[]").unwrap_err();
    assert!(short.contains(&needed.to_string()) && short.contains(&(needed - 1).to_string()), "{short}");
    assert_eq!(free(needed - 1, r#"[{"name": "kv_q8"}]"#), Ok(()), "8-bit state takes less");
    let context = refuse(&Assembly { context: Some(1 << 40), ..assembly("[]") });
    assert_eq!(context.kind(), ErrorKind::Usage, "{context}");
}

#[test]
fn a_drafting_head_drafts_and_changes_nothing() {
    let case = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/arch").join(name);
    let generate = |model: &str, plugins: &str| {
        let plugins = serde_json::from_str(plugins).unwrap();
        let assembly = Assembly { plugins, context: Some(96), max_batch: 1, ..Assembly::base(case(model)) };
        build_engine(&assembly, Model::open(&assembly.model).unwrap(), &[], ExecutorKind::Base).map(|mut built| {
            let request = Generate { prompt: (5..25).collect(), max_tokens: 40, ..Generate::default() };
            built.engine.submit(request).unwrap();
            let mut events = Vec::new();
            while built.engine.step_once(&mut events) {}
            let tokens = events.into_iter().filter_map(|event| match event {
                Event::Tokens { tokens, .. } => Some(tokens),
                _ => None,
            });
            (tokens.flatten().collect::<Vec<u32>>(), built.engine.counters().drafted_tokens)
        })
    };
    let head = r#"[{"name": "draft_head", "options": {"draft_tokens": 2}}]"#;
    let (plain, none) = generate("qwen3_5_vl", "[]").unwrap();
    let (drafted, some) = generate("qwen3_5_vl", head).unwrap();
    assert_eq!((plain.len(), none), (40, 0));
    assert_eq!(plain, drafted);
    assert!(some > 0);
    let error = generate("llama", head).unwrap_err().to_string();
    assert!(error.contains("not applicable") && error.contains("no drafting head"), "{error}");
    let error = generate("qwen3_5_vl", r#"[{"name": "prefix_cache"}]"#).unwrap_err().to_string();
    assert!(error.contains("not applicable") && error.contains("recurrent state"), "{error}");
}
