//! Tokenizers and chat templates against what the reference implementation answers.
//!
//! Runs on the committed cases, and on the full set where `CRIT_FIXTURES` names a folder with `tokenizers/<style>/`
//! and `arch/<case>/`.
#![allow(clippy::print_stderr)]

use crit_core::files::Checkpoint;
use crit_core::text::{ChatTemplate, Tokenizer};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The committed cases, and the full set if it is there; with the styles and twins that each must have.
fn roots() -> Vec<(PathBuf, usize, usize)> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut roots = vec![(committed, 2, 2)];
    match std::env::var_os("CRIT_FIXTURES") {
        Some(full) => roots.push((full.into(), 8, 6)),
        None => eprintln!("skipped: the full set, CRIT_FIXTURES names no folder"),
    }
    roots
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares everything the golden file of a style knows; returns the differences.
fn compare(checkpoint: &Checkpoint, golden: &Value) -> Vec<String> {
    let tokenizer = Tokenizer::from_checkpoint(checkpoint).unwrap();
    let mut wrong = Vec::new();
    let mut check = |what: &str, text: &str, got: String, want: String| {
        if got != want {
            wrong.push(format!("{what} of {text:?}:\n   got {got}\n  want {want}"));
        }
    };
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let (plain, special) = (ids(&case["ids"]), ids(&case["ids_with_special"]));
        check("ids", text, format!("{:?}", tokenizer.encode(text, false).unwrap()), format!("{plain:?}"));
        check("ids with special", text, format!("{:?}", tokenizer.encode(text, true).unwrap()), format!("{special:?}"));
        let decoded = tokenizer.decode(&plain, false).unwrap();
        check("decoded", text, decoded.clone(), case["decoded"].as_str().unwrap().into());
        let skipped = tokenizer.decode(&special, true).unwrap();
        check("decoded without special", text, skipped, case["decoded_skip_special"].as_str().unwrap().into());
        let mut stream = tokenizer.stream(false);
        let mut streamed: String = plain.iter().map(|id| stream.push(*id)).collect();
        streamed.push_str(&stream.finish());
        let dropped_space = streamed.strip_prefix(' ').filter(|rest| *rest == decoded).map(String::from);
        check("streamed", text, dropped_space.unwrap_or(streamed), decoded);
    }
    let template = ChatTemplate::from_checkpoint(checkpoint).unwrap().unwrap();
    for chat in golden["chats"].as_array().unwrap() {
        let mut extra = Map::new();
        if let Some(thinking) = chat.get("enable_thinking") {
            extra.insert("enable_thinking".into(), thinking.clone());
        }
        let prompt = chat["add_generation_prompt"].as_bool().unwrap();
        let text = template.render(&chat["messages"], chat.get("tools"), prompt, &extra).unwrap();
        check("chat", "", text.clone(), chat["text"].as_str().unwrap().into());
        check(
            "chat ids",
            &text,
            format!("{:?}", tokenizer.encode(&text, false).unwrap()),
            format!("{:?}", ids(&chat["ids"])),
        );
        if text.starts_with("<|begin_of_text|>") || tokenizer.bos().is_none() {
            check(
                "encode_chat",
                &text,
                format!("{:?}", tokenizer.encode_chat(&text).unwrap()),
                format!("{:?}", ids(&chat["ids"])),
            );
        }
    }
    wrong
}

/// A checkpoint with the files of a style and one small tensor.
fn checkpoint_of(style: &Path, folder: &Path) -> Checkpoint {
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(style.join(file), folder.join(file)).unwrap();
    }
    let header = json!({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[0; 4]);
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    Checkpoint::open(folder).unwrap()
}

#[test]
fn tokenizer_json_of_every_style() {
    for (root, styles, _) in roots() {
        assert_eq!(check_styles(&root), styles);
    }
}

fn check_styles(root: &Path) -> usize {
    let mut styles = 0;
    for style in std::fs::read_dir(root.join("tokenizers")).unwrap() {
        let style = style.unwrap().path();
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = checkpoint_of(&style, folder.path());
        let wrong = compare(&checkpoint, &read(&style.join("tokenizer_golden.json")));
        assert!(wrong.is_empty(), "{}: {} differences\n{}", style.display(), wrong.len(), wrong.join("\n"));
        styles += 1;
    }
    styles
}

#[test]
fn gguf_twins_answer_like_their_tokenizer_json() {
    for (root, _, twins) in roots() {
        assert!(check_twins(&root) >= twins);
    }
}

/// A twin whose style has no golden against the tokenizer.json beside it, on the texts of the other styles.
fn check_against_own(twin: &Checkpoint, case: &Path, root: &Path) {
    let [twin, own] = [Tokenizer::from_checkpoint(twin), Tokenizer::from_checkpoint(&Checkpoint::open(case).unwrap())]
        .map(|tokenizer| tokenizer.unwrap_or_else(|error| panic!("{}: {error}", case.display())));
    let mut texts = 0;
    for style in std::fs::read_dir(root.join("tokenizers")).unwrap() {
        let golden = read(&style.unwrap().path().join("tokenizer_golden.json"));
        for text in golden["cases"].as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap()) {
            let ids = [&twin, &own].map(|tokenizer| tokenizer.encode(text, true).unwrap());
            assert_eq!(ids[0], ids[1], "{}: {text:?}", case.display());
            texts += 1;
        }
    }
    assert!(texts > 10);
}

fn check_twins(root: &Path) -> usize {
    let mut twins = 0;
    for case in std::fs::read_dir(root.join("arch")).unwrap() {
        let case = case.unwrap().path();
        let gguf = case.join("model-bf16.gguf");
        if !gguf.is_file() {
            continue;
        }
        // The style of a case is the one whose tokenizer.json it has.
        let own = std::fs::read(case.join("tokenizer.json")).unwrap();
        let style = std::fs::read_dir(root.join("tokenizers")).unwrap().map(|style| style.unwrap().path());
        let style = style.into_iter().find(|style| std::fs::read(style.join("tokenizer.json")).unwrap() == own);
        let checkpoint = Checkpoint::open(&gguf).unwrap_or_else(|error| panic!("{}: {error}", gguf.display()));
        let Some(style) = style else {
            check_against_own(&checkpoint, &case, root);
            twins += 1;
            continue;
        };
        let mut wrong = compare(&checkpoint, &read(&style.join("tokenizer_golden.json")));
        // The converter marks these as control tokens because of their look; tokenizer.json has them as plain ones.
        wrong.retain(|line| !(line.starts_with("decoded without special") && line.contains("<｜User｜>")));
        assert!(wrong.is_empty(), "{}: {} differences\n{}", gguf.display(), wrong.len(), wrong.join("\n"));
        twins += 1;
    }
    twins
}
