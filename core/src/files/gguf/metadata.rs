//! The key-value pairs of a GGUF file.
//!
//! Numbers are widened; a float keeps the shortest decimal that stands for it, so that 1e-6 stored in 32 bits is 1e-6.
//! Strings and arrays stay in the file.

use super::super::map::Bytes;
use super::reader::Reader;
use crate::files::FileError;
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The metadata of a GGUF file.
#[derive(Debug)]
pub struct Metadata {
    path: PathBuf,
    file: Arc<Bytes>,
    pairs: BTreeMap<String, Pair>,
}

#[derive(Clone, Debug)]
enum Pair {
    Scalar(Kind, Range<usize>),
    Array(Kind, u64, Range<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_id(id: u32) -> Option<Self> {
        use Kind::*;
        // 9 is the array, which is no kind of element.
        let kinds = [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Str, U64, I64, F64];
        kinds.get(id as usize).copied().filter(|_| id != ARRAY)
    }

    fn id(self) -> u32 {
        use Kind::*;
        match self {
            U8 => 0,
            I8 => 1,
            U16 => 2,
            I16 => 3,
            U32 => 4,
            I32 => 5,
            F32 => 6,
            Bool => 7,
            Str => 8,
            U64 => 10,
            I64 => 11,
            F64 => 12,
        }
    }

    /// Bytes of a value; of a string, those of its length.
    fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Str => 8,
        }
    }
}

const ARRAY: u32 = 9;

impl Metadata {
    pub(super) fn read(path: &Path, file: &Arc<Bytes>, reader: &mut Reader<'_>, count: u64) -> Result<Self, String> {
        let mut pairs = BTreeMap::new();
        for i in 0..count {
            let key = reader.string("a metadata key")?;
            let key = std::str::from_utf8(key).map_err(|_| format!("metadata key {i} is not UTF-8"))?.to_string();
            if key.is_empty() {
                return Err(format!("metadata key {i} is empty"));
            }
            let pair = read_pair(&key, reader)?;
            if pairs.insert(key.clone(), pair).is_some() {
                return Err(format!("the metadata key `{key}` appears twice"));
            }
        }
        Ok(Self { path: path.into(), file: file.clone(), pairs })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// Whether `key` is there.
    pub fn has(&self, key: &str) -> bool {
        self.pairs.contains_key(key)
    }

    /// The string under `key`; none where there is another type or bytes that are no text.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.pairs.get(key)? {
            Pair::Scalar(Kind::Str, range) => std::str::from_utf8(&self.file[range.clone()]).ok(),
            _ => None,
        }
    }

    /// The truth value under `key`.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    /// The token id under `key`.
    pub fn id(&self, key: &str) -> Option<u32> {
        self.value(key)?.as_u64().and_then(|id| u32::try_from(id).ok())
    }

    /// The number, truth value, string or list of these under `key`, as JSON. None for a list of more than
    /// 65536 elements: such lists are read with their types.
    pub fn value(&self, key: &str) -> Option<Value> {
        match self.pairs.get(key)? {
            Pair::Scalar(Kind::Str, _) => self.str(key).map(Value::from),
            Pair::Scalar(kind, range) => number(*kind, &self.file[range.clone()]),
            Pair::Array(Kind::Str, count, _) if *count <= 65536 => {
                Some(self.strings(key).ok()??.into_iter().map(Value::from).collect())
            }
            Pair::Array(kind, count, range) if *count <= 65536 => {
                self.file[range.clone()].chunks_exact(kind.bytes() as usize).map(|bytes| number(*kind, bytes)).collect()
            }
            Pair::Array(..) => None,
        }
    }

    /// Elements of the array under `key`.
    pub fn array_len(&self, key: &str) -> Option<usize> {
        match self.pairs.get(key)? {
            Pair::Array(_, count, _) => usize::try_from(*count).ok(),
            Pair::Scalar(..) => None,
        }
    }

    /// The value under `key` as the format writes it: the number of its type, then the value.
    pub fn raw(&self, key: &str) -> Option<Vec<u8>> {
        let (head, range) = match self.pairs.get(key)? {
            // The length stands before a string's bytes.
            Pair::Scalar(Kind::Str, range) => (vec![Kind::Str.id()], range.start - 8..range.end),
            Pair::Scalar(kind, range) => (vec![kind.id()], range.clone()),
            Pair::Array(kind, count, range) => {
                let (low, high) = (*count as u32, (*count >> 32) as u32);
                (vec![ARRAY, kind.id(), low, high], range.clone())
            }
        };
        let head = head.into_iter().flat_map(u32::to_le_bytes);
        Some(head.chain(self.file[range].iter().copied()).collect())
    }

    /// The array of strings under `key`, if the key is there.
    ///
    /// # Errors
    /// Another type, or bytes that are no text.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, FileError> {
        let (count, range) = match self.pairs.get(key) {
            None => return Ok(None),
            Some(Pair::Array(Kind::Str, count, range)) => (*count, range.clone()),
            Some(_) => return Err(self.fault(key, "is no array of strings")),
        };
        let mut reader = Reader::new(&self.file[range]);
        let mut out = Vec::with_capacity(count as usize);
        for i in 0..count {
            let bytes = reader.string("a string").map_err(|what| self.fault(key, &what))?;
            let text = std::str::from_utf8(bytes);
            out.push(text.map_err(|_| self.fault(key, &format!("has a string, the {i}th, that is not UTF-8")))?);
        }
        Ok(Some(out))
    }

    /// The array of numbers under `key`, if the key is there.
    ///
    /// # Errors
    /// Another type.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, FileError> {
        match self.pairs.get(key) {
            None => Ok(None),
            Some(Pair::Array(kind, _, range)) if !matches!(kind, Kind::Str | Kind::Bool) => {
                let values = self.file[range.clone()].chunks_exact(kind.bytes() as usize);
                Ok(Some(values.map(|bytes| float(*kind, bytes)).collect()))
            }
            Some(_) => Err(self.fault(key, "is no array of numbers")),
        }
    }

    /// The value under `key` if it is stored as an unsigned number of 32 bits.
    pub(super) fn u32_exactly(&self, key: &str) -> Option<u32> {
        match self.pairs.get(key)? {
            Pair::Scalar(Kind::U32, range) => self.file[range.clone()].try_into().ok().map(u32::from_le_bytes),
            _ => None,
        }
    }

    /// The error that the value of `key` is not what it should be.
    pub fn fault(&self, key: &str, what: &str) -> FileError {
        FileError::Damaged { path: self.path.clone(), what: format!("its metadata key `{key}` {what}") }
    }
}

fn read_pair(key: &str, reader: &mut Reader<'_>) -> Result<Pair, String> {
    let id = reader.u32(key)?;
    if id != ARRAY {
        let kind = Kind::from_id(id).ok_or_else(|| format!("metadata key `{key}` has the unknown type {id}"))?;
        let value = if kind == Kind::Str { reader.string(key)? } else { reader.take(kind.bytes(), key)? };
        return Ok(Pair::Scalar(kind, reader.at() - value.len()..reader.at()));
    }
    let id = reader.u32(key)?;
    let count = reader.u64(key)?;
    if id == ARRAY {
        return Err(format!("metadata key `{key}` is an array of arrays"));
    }
    let kind = Kind::from_id(id).ok_or_else(|| format!("metadata key `{key}` is an array of the unknown type {id}"))?;
    let least = count.checked_mul(kind.bytes()).filter(|bytes| *bytes <= reader.left() as u64);
    let least = least.ok_or_else(|| {
        format!("metadata key `{key}` claims {count} elements, more than its {} bytes can hold", reader.left())
    })?;
    let start = reader.at();
    if kind == Kind::Str {
        for _ in 0..count {
            reader.string(key)?;
        }
    } else {
        reader.take(least, key)?;
    }
    Ok(Pair::Array(kind, count, start..reader.at()))
}

fn number(kind: Kind, bytes: &[u8]) -> Option<Value> {
    Some(match kind {
        Kind::Bool => Value::Bool(bytes.first() != Some(&0)),
        Kind::F32 | Kind::F64 => Value::Number(Number::from_f64(float(kind, bytes))?),
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Value::from(unsigned(bytes)),
        Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => Value::from(signed(bytes)),
        Kind::Str => return None,
    })
}

fn float(kind: Kind, bytes: &[u8]) -> f64 {
    match kind {
        Kind::F32 => bytes.try_into().map_or(f64::NAN, |bytes| shortest(f32::from_le_bytes(bytes))),
        Kind::F64 => bytes.try_into().map_or(f64::NAN, f64::from_le_bytes),
        Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64 => signed(bytes) as f64,
        _ => unsigned(bytes) as f64,
    }
}

/// The double that the shortest decimal for `x` stands for.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().min(8) as u32;
    if unused == 64 { 0 } else { (unsigned(bytes) << unused) as i64 >> unused }
}
