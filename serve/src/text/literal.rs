//! Keeps what people say from becoming control tokens.
//!
//! A chat template writes control tokens as text, and the tokenizer recognises them there. Whoever writes the same text
//! in a message could end a turn or begin a system message of his own. So each such text in a message is put between two
//! marks before the template sees it, and what lies between marks is tokenised as ordinary text.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

/// Before and after text to be taken literally. Noncharacters: no text from elsewhere may hold them.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// Finds the control tokens of a model in texts.
#[derive(Clone)]
pub(super) struct Literal(Option<AhoCorasick>);

impl Literal {
    /// For control tokens written as `texts`.
    pub(super) fn new(texts: &[String]) -> Self {
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        // Only more patterns than memory holds cannot be built; a vocabulary is far from that.
        Self(finder.ok().filter(|_| !texts.is_empty()))
    }

    /// Marks control tokens in every string of `value`.
    pub(super) fn mark(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.mark_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark(item)),
            Value::Object(members) => members.values_mut().for_each(|member| self.mark(member)),
            _ => {}
        }
    }

    fn mark_text(&self, text: &mut String) {
        if text.contains(MARKS) {
            *text = text.replace(MARKS, "\u{fffd}");
        }
        let Some(finder) = self.0.as_ref().filter(|finder| finder.is_match(text.as_str())) else { return };
        let mut marked = String::with_capacity(text.len() + 16);
        finder.replace_all_with(text, &mut marked, |_, found, out| {
            out.push(MARKS[0]);
            out.push_str(found);
            out.push(MARKS[1]);
            true
        });
        *text = marked;
    }
}

/// The parts of a rendered prompt in order, and whether each is to be taken literally. The first one is not.
pub(super) fn parts(prompt: &str) -> impl Iterator<Item = (&str, bool)> {
    prompt.split_inclusive(MARKS).scan(false, |literally, part| {
        let this = *literally;
        *literally = part.ends_with(MARKS[0]);
        Some((part.trim_end_matches(MARKS), this))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn control_tokens_in_messages_are_marked_and_split_off() {
        let literal = Literal::new(&["<end>".into(), "<end>>".into()]);
        let mut messages = json!([{"content": "a<end>>b<en d>", "calls": [{"x": "<end>"}]}, {"content": "\u{fdd0}c"}]);
        literal.mark(&mut messages);
        assert_eq!(messages[1]["content"], "\u{fffd}c");
        let marked = messages[0]["content"].as_str().unwrap();
        let found: Vec<_> = parts(marked).collect();
        assert_eq!(found, [("a", false), ("<end>>", true), ("b<en d>", false)]);
        assert_eq!(parts(messages[0]["calls"][0]["x"].as_str().unwrap()).nth(1), Some(("<end>", true)));
    }
}
