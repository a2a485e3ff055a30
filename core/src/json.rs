//! Strict JSON, for files that people and other programs hand in.
//!
//! The ordinary parser takes the last of two equal keys, recurses as deep as the text tells it to, and says little
//! about where a fault lies. Here a duplicate key, a document nested beyond [`Limits::max_depth`], a byte order mark,
//! trailing text, NaN, Infinity and a number outside the range of f64 are errors, each naming the file and the place.
//! [`Config`] reads typed keys out of a parsed document with errors of the same kind.

mod config;

pub use config::{Config, MAX_SIZE};

use crate::error::{Diagnose, ErrorKind, nearest};
use serde::de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Why a document was refused.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The file could not be read.
    #[error("{origin}: cannot be read")]
    Io {
        /// The file.
        origin: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// More bytes than allowed.
    #[error("{origin}: {bytes} bytes of JSON, at most {max_bytes} are read")]
    Size {
        /// The file.
        origin: String,
        /// Bytes it has.
        bytes: u64,
        /// Bytes allowed.
        max_bytes: u64,
    },
    /// Not UTF-8, or marked with a byte order mark.
    #[error("{origin}: {what}")]
    Encoding {
        /// The file.
        origin: String,
        /// What was found.
        what: String,
    },
    /// Not JSON, or JSON with a fault such as a duplicate key.
    #[error("{origin}: line {line} column {column}, at {path}: {what}")]
    Syntax {
        /// The file.
        origin: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Path of the value that was being read, such as `rope_scaling.factor`.
        path: String,
        /// The fault.
        what: String,
    },
    /// Sound JSON with a key that is not read.
    #[error("{origin}: {place} has no key `{key}`")]
    UnknownKey {
        /// The file.
        origin: String,
        /// Path of the object, or `the top level`.
        place: String,
        /// The key.
        key: String,
        /// Keys that are read there.
        known: Vec<String>,
    },
    /// Sound JSON with a value that is not what its key needs.
    #[error("{origin}: {path}: {found}, expected {expected}")]
    Value {
        /// The file.
        origin: String,
        /// Path of the key.
        path: String,
        /// What is there.
        found: String,
        /// What the key needs.
        expected: String,
    },
}

impl Diagnose for JsonError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Input
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Io { origin, .. } => format!("check that {origin} exists and may be read"),
            Self::Size { origin, .. } => format!("check that {origin} is the file you meant"),
            Self::Encoding { origin, .. } => format!("save {origin} as UTF-8 without a byte order mark"),
            Self::Syntax { origin, line, .. } => format!("correct line {line} of {origin}"),
            Self::UnknownKey { key, known, .. } => match nearest(key, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => format!("leave out `{key}`"),
                None => format!("leave out `{key}`; keys there are {}", known.join(", ")),
            },
            Self::Value { origin, path, expected, .. } => format!("set {path} in {origin} to {expected}"),
        })
    }
}

/// How large a document may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text.
    pub max_bytes: u64,
    /// Arrays and objects inside one another; the parser underneath stops at 127.
    pub max_depth: usize,
}

impl Default for Limits {
    /// 16 MiB and 64 levels: ample for configurations and records.
    fn default() -> Self {
        Self { max_bytes: 16 << 20, max_depth: 64 }
    }
}

/// Parses `bytes`; `origin` names them in errors.
///
/// # Errors
/// Anything that is not one strict JSON document within the default [`Limits`].
pub fn parse(bytes: &[u8], origin: &str) -> Result<Value, JsonError> {
    parse_within(bytes, origin, Limits::default())
}

/// Parses `bytes` under `limits`.
///
/// # Errors
/// Anything that is not one strict JSON document within `limits`.
pub fn parse_within(bytes: &[u8], origin: &str, limits: Limits) -> Result<Value, JsonError> {
    if bytes.len() as u64 > limits.max_bytes {
        let (bytes, max_bytes) = (bytes.len() as u64, limits.max_bytes);
        return Err(JsonError::Size { origin: origin.into(), bytes, max_bytes });
    }
    let text = check_encoding(bytes, origin)?;
    let place = Place::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Strict { place: &place, depth_left: limits.max_depth };
    let parsed = seed.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| syntax(&error, text, origin, &place))
}

/// Reads and parses the file at `path`.
///
/// # Errors
/// An unreadable file, or one that is not one strict JSON document within the default [`Limits`].
pub fn parse_file(path: &Path) -> Result<Value, JsonError> {
    let limits = Limits::default();
    parse_within(&read_bounded(path, limits.max_bytes)?, &path.display().to_string(), limits)
}

/// Reads and parses a file that Python may have written: strict JSON, except that a bare `Infinity` is read as the word in
/// quotes. Whoever wants a number there then says what it found.
///
/// # Errors
/// As of [`parse_file`].
pub fn parse_python_file(path: &Path) -> Result<Value, JsonError> {
    let limits = Limits::default();
    let bytes = quote_infinity(read_bounded(path, limits.max_bytes)?);
    parse_within(&bytes, &path.display().to_string(), limits)
}

/// Puts quotes around every `Infinity` (and `-Infinity`) outside strings.
fn quote_infinity(bytes: Vec<u8>) -> Vec<u8> {
    const WORD: &[u8] = b"Infinity";
    if !bytes.windows(WORD.len()).any(|part| part == WORD) {
        return bytes;
    }
    let (mut out, mut at, mut quoted) = (Vec::with_capacity(bytes.len() + 16), 0, false);
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let sign = usize::from(rest.starts_with(b"-Infinity"));
        if !quoted && rest[sign..].starts_with(WORD) {
            out.push(b'"');
            out.extend_from_slice(&rest[..sign + WORD.len()]);
            out.push(b'"');
            at += sign + WORD.len();
            continue;
        }
        // An escaped character never ends a string.
        let taken = if quoted && *byte == b'\\' { rest.len().min(2) } else { 1 };
        quoted ^= *byte == b'"';
        out.extend_from_slice(&rest[..taken]);
        at += taken;
    }
    out
}

/// Parses `bytes` strictly and then as a `T`; errors of either step name the JSON path.
///
/// # Errors
/// Anything that is not one strict JSON document, or not a `T`.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8], origin: &str) -> Result<T, JsonError> {
    from_value(parse(bytes, origin)?, origin)
}

/// Turns a parsed document into a `T`; an error names the JSON path.
///
/// # Errors
/// A document that is not a `T`.
pub fn from_value<T: DeserializeOwned>(value: Value, origin: &str) -> Result<T, JsonError> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| misfit(&error.path().to_string(), &error.inner().to_string(), origin))
}

/// What keeps a document from being a `T`, out of the words of its reader.
fn misfit(path: &str, message: &str, origin: &str) -> JsonError {
    let origin = origin.to_string();
    let place = |path: &str| if path == "." { "the top level".to_string() } else { format!("`{path}`") };
    if let Some((key, known)) = unknown_key(message) {
        let parent = path.strip_suffix(&key).map_or(path, |parent| parent.strip_suffix('.').unwrap_or(parent));
        return JsonError::UnknownKey {
            origin,
            place: place(if parent.is_empty() { "." } else { parent }),
            key,
            known,
        };
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        let expected = format!("an object with the key {key}");
        return JsonError::Value { origin, path: place(path), found: format!("the key {key} is missing"), expected };
    }
    let (found, expected) = message.rsplit_once(", expected ").unwrap_or((message, "a value of the documented form"));
    let found = found.strip_prefix("invalid type: ").or_else(|| found.strip_prefix("invalid value: ")).unwrap_or(found);
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, zero or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        other => other,
    };
    JsonError::Value { origin, path: place(path), found: found.into(), expected: expected.into() }
}

/// The key and the keys there are, of "unknown field `x`, expected one of `a`, `b`".
fn unknown_key(message: &str) -> Option<(String, Vec<String>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2).map(String::from);
    Some((quoted.next()?, quoted.collect()))
}

/// Reads the file at `path`, refusing more than `max_bytes` before holding them.
///
/// # Errors
/// An unreadable or too large file, or something that is no plain file.
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Vec<u8>, JsonError> {
    let origin = || path.display().to_string();
    let io = |source| JsonError::Io { origin: origin(), source };
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("not a plain file")));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > max_bytes {
        let bytes = metadata.len().max(bytes.len() as u64);
        return Err(JsonError::Size { origin: origin(), bytes, max_bytes });
    }
    Ok(bytes)
}

fn check_encoding<'a>(bytes: &'a [u8], origin: &str) -> Result<&'a str, JsonError> {
    let fault = |what: String| JsonError::Encoding { origin: origin.into(), what };
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(fault("starts with a byte order mark".into()));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(fault("is UTF-16, not UTF-8".into()));
    }
    std::str::from_utf8(bytes).map_err(|error| fault(format!("byte {} is not UTF-8", error.valid_up_to())))
}

fn syntax(error: &serde_json::Error, text: &str, origin: &str, place: &Place) -> JsonError {
    let (line, column) = (error.line(), error.column());
    let full = error.to_string();
    let what = full.split(" at line ").next().unwrap_or(&full);
    let at = text.lines().nth(line.saturating_sub(1)).and_then(|l| l.get(column.saturating_sub(1)..)).unwrap_or("");
    let what = match ["NaN", "Infinity", "-Infinity"].iter().find(|word| at.starts_with(**word)) {
        Some(word) => format!("{word} is not JSON"),
        None if text.is_empty() => "the document is empty".into(),
        None => what.to_string(),
    };
    JsonError::Syntax { origin: origin.into(), line, column, path: place.show(), what }
}

/// The path of the value being read. Left as it is when reading stops on an error.
#[derive(Default)]
struct Place(RefCell<Vec<Step>>);

enum Step {
    Key(String),
    Index(usize),
}

impl Place {
    fn within<T, E>(&self, step: Step, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.0.borrow_mut().push(step);
        let out = read()?;
        self.0.borrow_mut().pop();
        Ok(out)
    }

    fn show(&self) -> String {
        let steps = self.0.borrow();
        let mut out = String::new();
        // A path into a document nested too deep would be as long as the nesting.
        for step in steps.iter().take(12) {
            match step {
                Step::Key(key) if out.is_empty() => out.push_str(key),
                Step::Key(key) => {
                    out.push('.');
                    out.push_str(key);
                }
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        if out.is_empty() { "the top level".into() } else { format!("`{out}`") }
    }
}

struct Strict<'a> {
    place: &'a Place,
    depth_left: usize,
}

impl Strict<'_> {
    fn deeper<E: de::Error>(&self) -> Result<Strict<'_>, E> {
        let depth_left = self.depth_left.checked_sub(1).ok_or_else(|| E::custom("nested too deeply"))?;
        Ok(Strict { place: self.place, depth_left })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut out = Vec::new();
        let mut next = |i| {
            let seed = Strict { place: deeper.place, depth_left: deeper.depth_left };
            deeper.place.within(Step::Index(i), || seq.next_element_seed(seed))
        };
        while let Some(value) = next(out.len())? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(de::Error::custom(format!("the key `{key}` appears twice")));
            }
            let seed = Strict { place: deeper.place, depth_left: deeper.depth_left };
            let value = deeper.place.within(Step::Key(key.clone()), || map.next_value_seed(seed))?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse(text.as_bytes(), "f.json").unwrap_err().to_string()
    }

    #[test]
    fn takes_what_is_json() {
        let value = parse(br#"{"a": [1, -2, 2.5, "x\u00e9", null, true], "b": {}}"#, "f.json").unwrap();
        assert_eq!(value["a"][3], "xé");
        assert_eq!(value["a"][1], -2);
    }

    #[test]
    fn pythons_infinity_becomes_a_word_outside_strings_alone() {
        let quoted = |text: &str| String::from_utf8(quote_infinity(text.as_bytes().to_vec())).unwrap();
        assert_eq!(
            quoted(r#"{"a": [0.0, Infinity], "b": -Infinity}"#),
            r#"{"a": [0.0, "Infinity"], "b": "-Infinity"}"#
        );
        let inside = r#"{"Infinity": "to \"Infinity\" and -Infinity \\", "b": 1}"#;
        assert_eq!(quoted(inside), inside);
    }

    #[test]
    fn names_the_place_of_a_fault() {
        assert_eq!(
            message("{\"a\": {\"b\": 1,\n \"b\": 2}}"),
            "f.json: line 2 column 4, at `a`: the key `b` appears twice"
        );
        assert!(
            message(r#"{"a": [1, NaN]}"#).contains("at `a[1]`: NaN is not JSON"),
            "{}",
            message(r#"{"a": [1, NaN]}"#)
        );
        assert!(message(r#"{"t": 1e400}"#).contains("number out of range"));
        assert!(message("{} {}").contains("trailing"));
        assert!(message("").contains("empty"));
        assert!(message("\u{feff}{}").contains("byte order mark"));
        assert!(parse(b"{\"a\": \"\xff\"}", "f").unwrap_err().to_string().contains("byte 7 is not UTF-8"));
        assert!(message(&"[".repeat(100_000)).contains("nested too deeply"));
    }

    #[test]
    fn typed_errors_name_the_path() {
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[allow(dead_code)]
            inner: Vec<u8>,
        }
        let error = from_slice::<Outer>(br#"{"inner": [1, "x"]}"#, "f").unwrap_err().to_string();
        assert_eq!(error, r#"f: `inner[1]`: string "x", expected a whole number, zero or more"#);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[allow(dead_code)]
            width: u8,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Outer {
            #[allow(dead_code)]
            #[serde(default)]
            items: Vec<Inner>,
        }
        let refuse = |text: &str| {
            let error = from_slice::<Outer>(text.as_bytes(), "f").unwrap_err();
            (error.to_string(), error.hint().unwrap())
        };
        assert_eq!(
            refuse(r#"{"itmes": []}"#),
            ("f: the top level has no key `itmes`".into(), "did you mean `items`?".into())
        );
        let (message, hint) = refuse(r#"{"items": [{"width": 1}, {"width": 1, "colour": 2}]}"#);
        assert_eq!(message, "f: `items[1]` has no key `colour`");
        assert_eq!(hint, "leave out `colour`; keys there are width");
        assert_eq!(
            refuse(r#"{"items": [{}]}"#).0,
            "f: `items[0]`: the key `width` is missing, expected an object with the key `width`"
        );
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = parse(&bytes, "f");
        }

        #[test]
        fn json_like_text_never_panics_and_agrees_with_the_ordinary_parser(text in r#"[\[\]{}":,0-9eE.\-a-z \n]{0,60}"#) {
            if let Ok(value) = parse(text.as_bytes(), "f") {
                proptest::prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
