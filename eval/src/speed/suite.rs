//! The prompts of the speed suite: six, from a chat question to a long agent session.
//!
//! Built from the embedded texts and fixed words by a fixed seed, so that the suite has a digest; each repeat puts a
//! fresh line in front ([`Prompt::with_nonce`]), so that no engine can have seen it.

use crate::quality::texts::TEXTS;
use crate::rng::Rng;
use crit_core::digest::Digest;
use std::fmt::Write;

/// Version of the suite; its digest is tested.
pub const SUITE_VERSION: &str = "speed-1";

/// A prompt of the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its name in reports.
    pub name: &'static str,
    /// Its content.
    pub content: String,
}

impl Prompt {
    /// The prompt behind a line nobody has seen.
    pub fn with_nonce(&self, nonce: u64) -> String {
        format!("[{nonce:016x}]\n{}", self.content)
    }
}

/// The suite, from short to long.
pub fn prompts() -> Vec<Prompt> {
    let prompt = |name, content| Prompt { name, content };
    vec![
        prompt("chat_question", "Why is the sky blue at noon and red at dusk? Explain it to a curious child.".into()),
        prompt("code_review", format!("Find the mistakes in this module and list them:\n\n{}", text("code", 0, 1_000))),
        prompt("summary", format!("Summarise the following in three sentences:\n\n{}", text("verse", 0, 4_000))),
        prompt("continue_chat", format!("{}\nUser: Sort the last five answers.\n", text("chat", 0, 8_000))),
        prompt("long_code", format!("{}\nWrite tests for every function above.\n", text("code", 0, 12_000))),
        prompt("agent_session", agent_session(48_000)),
    ]
}

/// The suite's digest: version, names and contents.
pub fn suite_digest() -> Digest {
    let prompts = prompts();
    let parts = prompts.iter().flat_map(|p| [p.name.as_bytes(), p.content.as_bytes()]);
    Digest::of_parts(std::iter::once(SUITE_VERSION.as_bytes()).chain(parts))
}

/// Whole lines of a text from `from`, about `bytes` of them.
fn text(name: &str, from: usize, bytes: usize) -> String {
    let content = TEXTS.iter().find(|text| text.name == name).map_or("", |text| text.content);
    let mut out = String::new();
    for line in content.lines().skip(from) {
        if out.len() + line.len() > bytes {
            break;
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// A session of an agent at work: files read, commands run, results in JSON, edits, until `bytes` are reached.
fn agent_session(bytes: usize) -> String {
    let mut rng = Rng::new(14);
    let mut out = String::from("You are working on a repository. This is the session so far.\n");
    let mut turn = 0;
    while out.len() < bytes {
        turn += 1;
        let _ = match turn % 4 {
            0 => write!(out, "\n<tool name=\"search\">{}</tool>\n", search_result(&mut rng)),
            1 => write!(
                out,
                "\n<tool name=\"read_file\" path=\"src/{}.py\">\n{}</tool>\n",
                word(&mut rng),
                file(&mut rng)
            ),
            2 => write!(out, "\n<tool name=\"run\">{}</tool>\n", test_log(&mut rng)),
            _ => write!(
                out,
                "\nAssistant: The {} of {} looks wrong, because {} is {} there. I change it and run the tests again.\n",
                word(&mut rng),
                word(&mut rng),
                word(&mut rng),
                rng.below(1_000)
            ),
        };
    }
    out.push_str("\nUser: What is left to do? Answer with a short list.\n");
    out
}

const WORDS: &[&str] = &[
    "parser", "queue", "ledger", "socket", "matrix", "cursor", "bundle", "filter", "router", "buffer", "window",
    "record", "anchor", "planet", "garden", "signal", "widget", "folder", "bridge", "tunnel",
];

fn word(rng: &mut Rng) -> String {
    format!("{}_{}", WORDS[rng.below(WORDS.len())], WORDS[rng.below(WORDS.len())])
}

fn file(rng: &mut Rng) -> String {
    let names = ["code", "chat"];
    text(names[rng.below(2)], rng.below(250), 600 + rng.below(1_200))
}

fn search_result(rng: &mut Rng) -> String {
    let hits: Vec<String> = (0..3 + rng.below(6))
        .map(|_| {
            let (file, line, score) = (word(rng), rng.below(900), rng.below(1_000));
            format!("{{\"file\": \"src/{file}.py\", \"line\": {line}, \"score\": 0.{score:03}}}")
        })
        .collect();
    format!("[{}]", hits.join(", "))
}

fn test_log(rng: &mut Rng) -> String {
    (0..4 + rng.below(8))
        .map(|_| {
            let verdict = if rng.below(5) == 0 { "FAILED" } else { "ok" };
            format!("test {}::{} ... {verdict} ({} ms)\n", word(rng), word(rng), rng.below(5_000))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_is_the_one_that_was_published() {
        // A changed prompt is another suite: raise SUITE_VERSION together with this digest.
        assert_eq!(suite_digest().to_string(), "8e8b6c9b44dff8e09779830c2a33ac116754bfe0eb4fa6bb9ad5a7586626d8ff");
    }

    #[test]
    fn prompts_grow_and_no_two_repeats_begin_alike() {
        let prompts = prompts();
        assert!(prompts.windows(2).all(|pair| pair[0].content.len() < pair[1].content.len()));
        assert_eq!(prompts.len(), 6);
        let (a, b) = (prompts[0].with_nonce(1), prompts[0].with_nonce(2));
        assert_ne!(a.lines().next(), b.lines().next());
    }
}
