//! What lies between a message and token ids: tokenizer, chat template and the decoder of a stream.
//!
//! Looked at by properties that hold whatever the model: text survives encoding and decoding, also a character whose bytes
//! come in several tokens; a rendered message begins the text once, not twice; what a user says stands in the prompt.

use super::conduct::{Conduct, ConductState};

/// Encodes a text.
pub type Encode<'a> = &'a dyn Fn(&str) -> Result<Vec<u32>, String>;

/// The texts of a server.
pub struct TextSide<'a> {
    /// Token ids of a text, nothing added.
    pub encode: Encode<'a>,
    /// Token ids of a chat of one user message, up to where the answer begins.
    pub render: Encode<'a>,
    /// The text of tokens, as a stream is decoded.
    pub decode: &'a dyn Fn(&[u32]) -> String,
    /// The token that begins a text.
    pub bos: Option<u32>,
}

/// Texts that break decoders: several bytes a character, combining marks, space at the ends, code, nothing but signs.
/// All in normal form C, which some tokenizers bring a text into.
const HARD: [&str; 5] = [
    "Grüße aus Köln, naïve façade — 12 €",
    "日本語とעברית und 🦀🧑‍🚀 zusammen",
    "\tfn main() {\n    let x = 1;\n}\n",
    "...!?;;;   ---   (((",
    "1234567890 3.14159 -0x7f",
];

/// Checks tokenizer, template and decoder.
pub fn text_conduct(side: &TextSide<'_>) -> Conduct {
    const WHAT: &str = "tokenizer, chat template and stream decoder: text survives, and is begun once";
    match look(side) {
        Ok(detail) => Conduct::new("text", WHAT, ConductState::Pass, detail),
        Err(wrong) => Conduct::new("text", WHAT, ConductState::Fail, wrong),
    }
}

fn look(side: &TextSide<'_>) -> Result<String, String> {
    for text in HARD {
        let back = (side.decode)(&(side.encode)(text)?);
        // Some tokenizers begin every text with a space, and say so by giving it back.
        if back.strip_prefix(' ').unwrap_or(&back) != text.strip_prefix(' ').unwrap_or(text) {
            return Err(format!("{text:?} comes back as {back:?}"));
        }
    }
    let (marker, other) = ("a zebra crossed", "nothing");
    let (with, without) = ((side.render)(marker)?, (side.render)(other)?);
    if with == without {
        return Err("what the user says does not change the prompt".into());
    }
    if let Some(bos) = side.bos {
        let count = with.iter().filter(|id| **id == bos).count();
        let doubled = with.len() > 1 && with[0] == bos && with[1] == bos;
        // Some models end turns with the token that begins texts; twice at the very start is never meant.
        if doubled {
            return Err(format!("a rendered message begins with the token that begins a text twice ({count} in all)"));
        }
    }
    if !(side.decode)(&with).contains(marker) {
        return Err("what the user says is not in the prompt".into());
    }
    Ok(format!("{} texts survive, a rendered message has {} tokens", HARD.len(), with.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn text(ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn rendered(prefix: &[u32], user: &str) -> Result<Vec<u32>, String> {
        Ok([prefix, &bytes(&format!("U:{user}\nA:"))?].concat())
    }

    fn state(side: &TextSide<'_>) -> (ConductState, String) {
        let found = text_conduct(side);
        assert_eq!(found.check, "text");
        (found.state, found.detail)
    }

    #[test]
    fn an_honest_one_passes_and_broken_ones_are_refused() {
        let once = |user: &str| rendered(&[300], user);
        let honest = TextSide { encode: &bytes, render: &once, decode: &text, bos: Some(300) };
        assert_eq!(state(&honest).0, ConductState::Pass, "{honest:?}", honest = state(&honest));
        let twice = |user: &str| rendered(&[300, 300], user);
        assert!(state(&TextSide { render: &twice, ..honest }).1.contains("twice"));
        let deaf = |_: &str| rendered(&[300], "");
        assert!(state(&TextSide { render: &deaf, ..honest }).1.contains("does not change"));
        // A decoder that makes text of each token by itself breaks characters of several bytes.
        let bytewise = |ids: &[u32]| ids.iter().map(|id| text(&[*id])).collect::<String>();
        assert!(state(&TextSide { decode: &bytewise, ..honest }).1.contains("comes back"));
    }
}
