//! A look at tokenizer.json before the library reads it: the library does not survive merges longer than every token.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Says what is wrong with the merges in `json`. Other faults, and text that is no JSON, are the library's to report.
pub(super) fn fault(json: &[u8]) -> Option<String> {
    let file: File = serde_json::from_slice(json).ok()?;
    let (longest, vocabulary) = (file.model.merges?.0, file.model.vocab?.0);
    (longest > vocabulary).then(|| format!("a merge makes {longest} bytes, the longest token has {vocabulary}"))
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: Option<LongestKey>,
    merges: Option<LongestMerge>,
}

/// Bytes of the longest key of an object.
struct LongestKey(usize);

/// Bytes of the longest text that a merge makes: `"a b"` or `["a", "b"]`.
struct LongestMerge(usize);

struct Bytes(usize);

macro_rules! by_visitor {
    ($type:ident, $expects:literal, $($visit:tt)*) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visit;
                impl<'de> Visitor<'de> for Visit {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expects)
                    }
                    $($visit)*
                }
                deserializer.deserialize_any(Visit)
            }
        }
    };
}

by_visitor! {
    Bytes, "a string or two",
    fn visit_str<E>(self, text: &str) -> Result<Bytes, E> {
        // The space between the two is no part of the merged token.
        Ok(Bytes(text.len().saturating_sub(1)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bytes, A::Error> {
        let mut sum = 0;
        while let Some(Bytes(bytes)) = seq.next_element()? {
            sum += bytes + 1;
        }
        Ok(Bytes(sum))
    }
}

by_visitor! {
    LongestMerge, "a list of merges",
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LongestMerge, A::Error> {
        let mut longest = 0;
        while let Some(Bytes(bytes)) = seq.next_element()? {
            longest = longest.max(bytes);
        }
        Ok(LongestMerge(longest))
    }
}

by_visitor! {
    LongestKey, "an object",
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LongestKey, A::Error> {
        let mut longest = 0;
        while let Some((Key(bytes), IgnoredAny)) = map.next_entry()? {
            longest = longest.max(bytes);
        }
        Ok(LongestKey(longest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LongestKey, A::Error> {
        // A vocabulary of pieces with scores has no merges.
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LongestKey(usize::MAX))
    }
}

struct Key(usize);

by_visitor! {
    Key, "a string",
    fn visit_str<E>(self, text: &str) -> Result<Key, E> {
        Ok(Key(text.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn merges_longer_than_every_token() {
        let json =
            |merges: &str| format!(r#"{{"x": [1], "model": {{"vocab": {{"a": 0, "ab": 1}}, "merges": {merges}}}}}"#);
        assert_eq!(fault(json(r#"["a b", ["a", "b"]]"#).as_bytes()), None);
        assert!(fault(json(r#"["ab a"]"#).as_bytes()).is_some());
        assert!(fault(json(r#"[["ab", "a"]]"#).as_bytes()).is_some());
        assert_eq!(fault(b"no json"), None);
    }
}
