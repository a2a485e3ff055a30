//! The texts of the quality suite: embedded, tokenised by the caller, hashed by what they are.

use crate::rng::Rng;
use crit_core::digest::Digest;

/// A text of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuiteText {
    /// Its name in reports.
    pub name: &'static str,
    /// Its content.
    pub content: &'static str,
}

/// The texts, sorted by name. Licences stand in `texts/README.md`.
pub const TEXTS: &[SuiteText] = &[
    SuiteText { name: "chat", content: include_str!("../../texts/chat.txt") },
    SuiteText { name: "code", content: include_str!("../../texts/code.txt") },
    SuiteText { name: "verse", content: include_str!("../../texts/verse.txt") },
];

/// The suite's digest: names and contents.
pub fn suite_digest() -> Digest {
    Digest::of_parts(TEXTS.iter().flat_map(|text| [text.name.as_bytes(), text.content.as_bytes()]))
}

/// A text nobody has seen: lines of the suite in an order drawn from `seed`, with words and numbers among them changed. An
/// engine that knows the suite does not know this.
pub fn secret(seed: u64, bytes: usize) -> String {
    let mut rng = Rng::new(seed);
    let lines: Vec<&str> = TEXTS.iter().flat_map(|text| text.content.lines()).filter(|line| line.len() > 20).collect();
    let mut out = format!("Notes of day {}, copied by hand:\n", rng.below(10_000));
    while out.len() < bytes && !lines.is_empty() {
        let line = lines[rng.below(lines.len())];
        let mut words: Vec<&str> = line.split(' ').collect();
        let (from, to) = (rng.below(words.len()), rng.below(words.len()));
        words.swap(from, to);
        out.push_str(&words.join(" "));
        if rng.below(3) == 0 {
            out.push_str(&format!(" ({})", rng.below(100_000)));
        }
        out.push('\n');
    }
    out
}

/// A text as token ids of one model, with whatever the model wants in front (its beginning-of-sequence token).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Its name in reports.
    pub name: String,
    /// Its token ids.
    pub ids: Vec<u32>,
    /// First position that is scored; what lies before is only read. 0 for all but texts that are long for depth's sake.
    pub from: usize,
}

impl Text {
    /// A text scored from its start.
    pub fn new(name: impl Into<String>, ids: Vec<u32>) -> Self {
        Self { name: name.into(), ids, from: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_text_is_long_enough_and_another_for_every_seed() {
        let (a, b) = (secret(1, 3_000), secret(2, 3_000));
        assert!(a.len() >= 3_000 && a != b && a == secret(1, 3_000));
        assert!(TEXTS.iter().all(|text| !text.content.contains(a.lines().nth(3).unwrap())));
    }

    #[test]
    fn the_suite_is_the_one_that_was_published() {
        // A changed text is another suite: raise EVAL_VERSION together with this digest.
        assert_eq!(suite_digest().to_string(), "f31bbd3c64cf02a8060961938efb152030cf6707b005e369954fafdb05f38fd8");
        assert!(TEXTS.iter().all(|text| (8_000..=12_288).contains(&text.content.len())));
    }
}
