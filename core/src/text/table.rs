//! The bytes each token stands for, in one table.

use serde_json::Value;

/// How a vocabulary writes bytes that are no plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte is a character of a fixed alphabet of 256 (GPT-2's).
    ByteLevel,
    /// A space is "▁", and single bytes are tokens `<0xNN>`.
    SentencePiece,
    /// As is.
    Plain,
}

impl Spelling {
    /// The spelling that a decoder, as tokenizer.json describes it, undoes.
    pub(super) fn of_decoder(decoder: &Value) -> Self {
        let kinds = decoder["decoders"].as_array().map_or_else(|| vec![decoder], |list| list.iter().collect());
        let has = |kind: &str| kinds.iter().any(|decoder| decoder["type"] == kind);
        if has("ByteLevel") {
            Self::ByteLevel
        } else if has("ByteFallback") || has("Metaspace") {
            Self::SentencePiece
        } else {
            Self::Plain
        }
    }

    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => token.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| token.into()),
            Self::SentencePiece => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
            Self::Plain => token.into(),
        }
    }
}

/// The bytes of every token, by id.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenTable {
    /// The table of `tokens` by id; added tokens stand for themselves, the others are spelled as `spelling` says.
    /// Ids without a token stand for nothing.
    pub(super) fn new(tokens: &[Option<(String, bool)>], spelling: Spelling) -> Self {
        let mut table = Self::default();
        for token in tokens {
            match token {
                Some((text, true)) => table.bytes.extend_from_slice(text.as_bytes()),
                Some((text, false)) => table.bytes.extend_from_slice(&spelling.bytes(text)),
                None => {}
            }
            table.ends.push(table.bytes.len());
        }
        table
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }
}

/// The byte of a token `<0xNN>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that a character of the byte-level alphabet stands for. Printable Latin-1 bytes stand for themselves; the
/// 68 others were given the code points from 256 on, in order.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match c as u32 {
        code if printable(code) => u8::try_from(code).ok(),
        code @ 256..=323 => (0..256u32).filter(|byte| !printable(*byte)).nth(code as usize - 256).map(|b| b as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let mut seen: Vec<u8> = (0..400).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            (byte_of('Ġ'), byte_of('Ċ'), byte_of('A'), byte_of('中')),
            (Some(b' '), Some(b'\n'), Some(b'A'), None)
        );
    }

    #[test]
    fn spellings() {
        let tokens =
            vec![Some(("▁a".to_string(), false)), None, Some(("<0x0A>".into(), false)), Some(("<0x0A>".into(), true))];
        let table = TokenTable::new(&tokens, Spelling::SentencePiece);
        assert_eq!([0, 1, 2, 3].map(|id| table.get(id).unwrap()), [&b" a"[..], b"", b"\n", b"<0x0A>"]);
        assert_eq!(table.get(4), None);
    }
}
