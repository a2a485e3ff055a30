//! The one byte form a record may have.
//!
//! A record is identified by the hash of its bytes, so two spellings of one value must not both be acceptable. The form is
//! RFC 8785 narrowed further: whole numbers up to 2^53 − 1, strings in Unicode NFC, keys in ASCII snake_case. The parser is
//! our own because general parsers keep the last of two equal keys and turn large integers into rounded floats, which would
//! give two different records one hash.
//!
//! Invariant: `to_bytes(parse(b)) == b` exactly when `b` is canonical.

use crit_core::digest::Digest;
use serde_json::{Map, Value};
use unicode_normalization::is_nfc;

/// The largest integer magnitude that every JSON reader keeps exactly.
pub const MAX_INTEGER: i64 = (1 << 53) - 1;

/// Deeper nesting than any record has; keeps hostile input from exhausting the stack.
const MAX_DEPTH: usize = 64;

/// Prefix of the hash input of a record id, so that a record's id is no other digest of the same bytes.
const RECORD_DOMAIN: &[u8] = b"crit.record.v1\n";

/// Why bytes or a value have no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (at {place})")]
pub struct CanonicalError {
    /// What is wrong.
    pub what: String,
    /// Where: a byte offset of the text or the path of a value.
    pub place: String,
}

/// The id of a record that is stored as `bytes`.
pub fn record_id(bytes: &[u8]) -> Digest {
    Digest::of(&[RECORD_DOMAIN, bytes].concat())
}

/// The canonical bytes of `value`, or why it has none.
pub fn to_bytes(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::new();
    write_value(value, &mut out, &mut Vec::new())?;
    Ok(out)
}

/// Parses `bytes`, which must already be canonical.
pub fn from_bytes(bytes: &[u8]) -> Result<Value, CanonicalError> {
    let value = parse(bytes)?;
    let again = to_bytes(&value)?;
    if again == bytes {
        return Ok(value);
    }
    let offset = again.iter().zip(bytes).take_while(|(a, b)| a == b).count();
    Err(at_byte(offset, "the text is not in canonical form"))
}

/// Parses strict JSON: no duplicate keys, floats, large integers, denormalised strings or odd keys.
pub fn parse(bytes: &[u8]) -> Result<Value, CanonicalError> {
    let text = std::str::from_utf8(bytes).map_err(|e| at_byte(e.valid_up_to(), "the text is not UTF-8"))?;
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.error("something follows the value"));
    }
    Ok(value)
}

fn at_byte(offset: usize, what: impl Into<String>) -> CanonicalError {
    CanonicalError { what: what.into(), place: format!("byte {offset}") }
}

fn is_snake_case(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn write_value(value: &Value, out: &mut Vec<u8>, path: &mut Vec<String>) -> Result<(), CanonicalError> {
    let fail = |path: &[String], what: String| CanonicalError { what, place: format!("/{}", path.join("/")) };
    if path.len() > MAX_DEPTH {
        return Err(fail(path, format!("nested deeper than {MAX_DEPTH}")));
    }
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
        Value::Number(number) => match number.as_i64().filter(|n| n.unsigned_abs() <= MAX_INTEGER as u64) {
            Some(n) => out.extend_from_slice(n.to_string().as_bytes()),
            None => {
                let what = format!("{number} is not a whole number within ±(2^53 - 1); write it as text with its unit");
                return Err(fail(path, what));
            }
        },
        Value::String(text) => {
            if !is_nfc(text) {
                return Err(fail(path, "the string is not in Unicode NFC".into()));
            }
            write_string(text, out);
        }
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                path.push(i.to_string());
                write_value(item, out, path)?;
                path.pop();
            }
            out.push(b']');
        }
        Value::Object(map) => write_object(map, out, path)?,
    }
    Ok(())
}

fn write_object(map: &Map<String, Value>, out: &mut Vec<u8>, path: &mut Vec<String>) -> Result<(), CanonicalError> {
    // Keys are ASCII, so byte order is the UTF-16 order that RFC 8785 asks for.
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_unstable();
    out.push(b'{');
    for (i, key) in keys.into_iter().enumerate() {
        path.push(key.clone());
        if !is_snake_case(key) {
            let place = format!("/{}", path.join("/"));
            return Err(CanonicalError { what: format!("key `{key}` is not ASCII snake_case"), place });
        }
        if i > 0 {
            out.push(b',');
        }
        write_string(key, out);
        out.push(b':');
        write_value(&map[key], out, path)?;
        path.pop();
    }
    out.push(b'}');
    Ok(())
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, what: impl Into<String>) -> CanonicalError {
        at_byte(self.at, what)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), CanonicalError> {
        if self.peek() != Some(byte) {
            return Err(self.error(format!("expected `{}`", byte as char)));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value, CanonicalError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.integer(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(_) => Err(self.error("not a JSON value")),
            None => Err(self.error("the text ends early")),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, CanonicalError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.error("not a JSON value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Result<Value, CanonicalError> {
        self.expect(b'{')?;
        let mut map = Map::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(map));
        }
        loop {
            self.skip_space();
            let start = self.at;
            let key = self.string()?;
            if !is_snake_case(&key) {
                return Err(at_byte(start, format!("key `{key}` is not ASCII snake_case")));
            }
            if map.contains_key(&key) {
                return Err(at_byte(start, format!("key `{key}` appears twice")));
            }
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b'}')?;
            return Ok(Value::Object(map));
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, CanonicalError> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b']')?;
            return Ok(Value::Array(items));
        }
    }

    fn integer(&mut self) -> Result<Value, CanonicalError> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let first = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Err(at_byte(start, "a float; records hold whole numbers or text with a unit"));
        }
        let digits = &self.text[first..self.at];
        let text = &self.text[start..self.at];
        if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) || text == "-0" {
            return Err(at_byte(start, format!("`{text}` is not a number")));
        }
        match text.parse::<i64>() {
            Ok(n) if n.unsigned_abs() <= MAX_INTEGER as u64 => Ok(Value::from(n)),
            _ => Err(at_byte(start, format!("{text} is beyond ±(2^53 - 1)"))),
        }
    }

    fn string(&mut self) -> Result<String, CanonicalError> {
        let start = self.at;
        self.expect(b'"')?;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => out.push(self.escape()?),
                Some(_) => return Err(self.error("a control character in a string")),
                None => return Err(at_byte(start, "the string does not end")),
            }
        }
        self.at += 1;
        if !is_nfc(&out) {
            return Err(at_byte(start, "the string is not in Unicode NFC"));
        }
        Ok(out)
    }

    fn escape(&mut self) -> Result<char, CanonicalError> {
        self.at += 1;
        let byte = self.peek().ok_or_else(|| self.error("the text ends early"))?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => byte as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.error("unknown escape in a string")),
        })
    }

    fn unicode_escape(&mut self) -> Result<char, CanonicalError> {
        let high = self.hex4()?;
        let code = if (0xd800..0xdc00).contains(&high) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let low = self.hex4()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(self.error("a lone surrogate in a string"));
            }
            0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
        } else {
            high
        };
        char::from_u32(code).ok_or_else(|| self.error("a lone surrogate in a string"))
    }

    fn hex4(&mut self) -> Result<u32, CanonicalError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        let code = digits.iter().try_fold(0, |code, b| Some(code * 16 + (*b as char).to_digit(16)?));
        let code = code.filter(|_| digits.len() == 4).ok_or_else(|| self.error("`\\u` needs four hex digits"))?;
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        parse(text.as_bytes()).expect_err(text).what
    }

    #[test]
    fn refuses_what_two_readers_could_read_differently() {
        assert!(refused(r#"{"a":1,"a":2}"#).contains("twice"));
        assert!(refused(r#"{"a":1,"\u0061":2}"#).contains("twice"));
        for number in ["1.0", "1e3", "-0", "01", "-", "9007199254740992", "-9007199254740992", "16159082839903944936"] {
            refused(number);
        }
        for number in ["0", "-1", "9007199254740991", "-9007199254740991"] {
            assert_eq!(to_bytes(&parse(number.as_bytes()).unwrap()).unwrap(), number.as_bytes());
        }
        assert!(refused("\"e\u{301}\"").contains("NFC"));
        assert!(refused(r#""\ud800""#).contains("surrogate"));
        assert!(refused(r#""\ud800\u0041""#).contains("surrogate"));
        assert!(refused(r#"{"CamelCase":1}"#).contains("snake_case"));
        assert!(refused(r#"{"9a":1}"#).contains("snake_case"));
        for text in [
            "",
            "nul",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":1,}",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"",
            "1 1",
            "\u{feff}1",
        ] {
            refused(text);
        }
        assert!(refused(&"[".repeat(100_000)).contains("deeper"));
    }

    #[test]
    fn writes_the_rfc_8785_string_forms() {
        let value = Value::from("\u{20ac}$\u{f}\nA'B\"\\\\\"/\u{7f}");
        let expected = "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\u{7f}\"";
        assert_eq!(String::from_utf8(to_bytes(&value).unwrap()).unwrap(), expected);
        assert_eq!(parse(br#""\ud83d\ude00""#).unwrap(), Value::from("😀"));
    }

    #[test]
    fn sorts_keys_and_names_the_place_of_a_float() {
        let value = serde_json::json!({"b": 1, "a": [true, null], "a_1": {}});
        assert_eq!(to_bytes(&value).unwrap(), br#"{"a":[true,null],"a_1":{},"b":1}"#);
        let error = to_bytes(&serde_json::json!({"a": [0, 1.5]})).unwrap_err();
        assert_eq!(error.place, "/a/1");
        assert!(from_bytes(br#"{"b":1,"a":2}"#).is_err());
        assert!(from_bytes(b"{ }").is_err());
    }

    #[test]
    fn record_id_known_answer() {
        let expected = "07e0ecbb0c038385142361b5b06963bd176b4c4c15c7a554f96acc763f89dd53";
        assert_eq!(record_id(b"{}").to_string(), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = any::<String>()
            .prop_map(|s| unicode_normalization::UnicodeNormalization::nfc(s.as_str()).collect::<String>());
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-MAX_INTEGER..=MAX_INTEGER).prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[a-z][a-z0-9_]{0,5}", inner, 0..6)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_bytes_round_trip(value in any_value()) {
            let bytes = to_bytes(&value).unwrap();
            prop_assert_eq!(&from_bytes(&bytes).unwrap(), &value);
            // An independent reader agrees on the value, so nothing was lost on the way.
            prop_assert_eq!(&serde_json::from_slice::<Value>(&bytes).unwrap(), &value);
        }

        #[test]
        fn spacing_and_key_order_do_not_change_the_form(value in any_value()) {
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            prop_assert_eq!(to_bytes(&parse(&pretty).unwrap()).unwrap(), to_bytes(&value).unwrap());
        }

        #[test]
        fn any_flipped_byte_changes_the_id(value in any_value(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = to_bytes(&value).unwrap();
            let id = record_id(&bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_ne!(record_id(&bytes), id);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = from_bytes(&bytes) {
                prop_assert_eq!(to_bytes(&value).unwrap(), bytes);
            }
        }
    }
}
