//! safetensors: one file.
//!
//! A file is accepted iff its header is strict JSON, every tensor's byte range is what its type and shape need, and the
//! ranges in order cover the data without hole or overlap. Data need not be aligned: old writers did not pad the header.

use super::dtype::DType;
use super::error::FileError;
use super::map::Bytes;
use super::tensor::{StoredTensor, TensorFacts};
use crate::json::{self, JsonError, Limits};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Largest header that the format's own library reads.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors of one file.
pub(super) fn open_file(path: &Path) -> Result<Vec<StoredTensor>, FileError> {
    let file = Bytes::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    read(path, file.into())
}

/// The tensors of the file at `path` with these bytes.
pub(super) fn read(path: &Path, file: Arc<Bytes>) -> Result<Vec<StoredTensor>, FileError> {
    let (header, data_start) = header(path, &file)?;
    let entries = header.iter().filter(|(name, _)| *name != "__metadata__");
    let mut tensors = Vec::with_capacity(header.len());
    for (name, entry) in entries {
        tensors.push(read_entry(path, name, entry)?);
    }
    check_cover(path, &mut tensors, file.len() - data_start)?;
    tensors.into_iter().map(|entry| StoredTensor::new(entry.facts, file.clone(), data_start + entry.begin)).collect()
}

/// The header's object and where the data starts.
fn header(path: &Path, file: &[u8]) -> Result<(Map<String, Value>, usize), FileError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(damaged(path, format!("it has {} bytes, fewer than the 8 of the header's length", file.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(damaged(
            path,
            format!("its header claims {length} bytes, more than the {MAX_HEADER_BYTES} allowed"),
        ));
    }
    let length = length as usize;
    let text = rest.get(..length).ok_or_else(|| {
        damaged(path, format!("its header claims {length} bytes, the file ends after {}", rest.len()))
    })?;
    let limits = Limits { max_bytes: MAX_HEADER_BYTES, max_depth: 8 };
    match json::parse_within(text, "header", limits).map_err(|error| broken_header(path, &error))? {
        Value::Object(map) => {
            check_metadata(path, map.get("__metadata__"))?;
            Ok((map, 8 + length))
        }
        _ => Err(damaged(path, "its header is no JSON object".into())),
    }
}

fn check_metadata(path: &Path, metadata: Option<&Value>) -> Result<(), FileError> {
    let sound = match metadata {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.values().all(Value::is_string),
        Some(_) => false,
    };
    if sound { Ok(()) } else { Err(damaged(path, "its `__metadata__` is no object of strings".into())) }
}

fn broken_header(path: &Path, error: &JsonError) -> FileError {
    damaged(path, format!("its header is no sound JSON ({error})"))
}

struct Entry {
    facts: TensorFacts,
    begin: usize,
    end: usize,
}

fn read_entry(path: &Path, name: &str, entry: &Value) -> Result<Entry, FileError> {
    let fault = |what: &str| damaged(path, format!("tensor `{name}`: {what}"));
    let sizes = |key: &str| -> Option<Vec<usize>> {
        let items = entry.get(key)?.as_array()?;
        items.iter().map(|item| item.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    };
    let dtype = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| fault("`dtype` is no string"))?;
    let shape = sizes("shape").ok_or_else(|| fault("`shape` is no list of sizes"))?;
    let offsets = sizes("data_offsets").ok_or_else(|| fault("`data_offsets` are no two byte offsets"))?;
    let [begin, end] = offsets[..] else { return Err(fault("`data_offsets` are no two byte offsets")) };
    let dtype =
        DType::from_safetensors(dtype).ok_or_else(|| fault(&format!("`{dtype}` is no element type of the format")))?;
    let row_len = shape.last().copied().unwrap_or(1);
    if !row_len.is_multiple_of(dtype.block_elems()) {
        return Err(FileError::Unsupported {
            path: path.into(),
            what: format!("tensor `{name}` of {dtype} with rows of {row_len}, which end within a byte,"),
            supported: format!("rows of a multiple of {} elements", dtype.block_elems()),
        });
    }
    let facts = TensorFacts { name: name.into(), stored_name: name.into(), dtype, shape };
    let needed = facts.bytes().map_err(|error| damaged(path, error.to_string()))?;
    match end.checked_sub(begin) {
        Some(given) if given == needed => Ok(Entry { facts, begin, end }),
        Some(given) => {
            let shape = &facts.shape;
            Err(fault(&format!("{dtype} {shape:?} needs {needed} bytes, its `data_offsets` span {given}")))
        }
        None => Err(fault("its `data_offsets` end before they begin")),
    }
}

/// Sorts by offset and checks that the ranges cover the `data_bytes` bytes, each once.
fn check_cover(path: &Path, tensors: &mut [Entry], data_bytes: usize) -> Result<(), FileError> {
    tensors.sort_by_key(|entry| (entry.begin, entry.end));
    let mut at = 0;
    for entry in tensors.iter() {
        let Entry { facts, begin, end } = entry;
        if *begin != at {
            let what = if *begin < at { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let name = &facts.name;
            return Err(damaged(path, format!("tensor `{name}` {what}: it begins at byte {begin}, {at} is next")));
        }
        at = *end;
    }
    if at == data_bytes {
        return Ok(());
    }
    Err(damaged(path, format!("its tensors need {at} bytes of data, it has {data_bytes}")))
}

fn damaged(path: &Path, what: String) -> FileError {
    FileError::Damaged { path: path.into(), what }
}
