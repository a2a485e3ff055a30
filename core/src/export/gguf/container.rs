//! The container: header, metadata, tensor descriptions and offsets of one file.

use super::super::error::ExportError;
use super::super::write::{OutFile, Slot};
use crate::files::DType;

/// Where data begin is a multiple of this.
const ALIGNMENT: u64 = 32;
/// The format's version.
const VERSION: u32 = 3;
/// Bytes of the longest tensor name that readers take.
const MAX_NAME_BYTES: usize = 63;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Pair {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    Strs(Vec<String>),
    /// Type number and value as another file has them.
    Raw(Vec<u8>),
}

impl From<&str> for Pair {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) name: String,
    pub(in super::super) dtype: DType,
    /// PyTorch order.
    pub(in super::super) shape: Vec<usize>,
    pub(in super::super) bytes: u64,
}

/// The file called `name` and where each entry lies in it.
pub(in super::super) fn layout(
    name: &str,
    pairs: &[(String, Pair)],
    entries: &[Entry],
) -> Result<(OutFile, Vec<Slot>), ExportError> {
    let mut header = b"GGUF".to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        put_str(&mut header, key);
        put_value(&mut header, value);
    }
    let mut offset = 0u64;
    let mut offsets = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = entry.dtype.format().gguf_id.filter(|_| entry.name.len() <= MAX_NAME_BYTES).ok_or_else(|| {
            ExportError::unsupported(
                format!("GGUF has no tensor `{}` of type {}", entry.name, entry.dtype),
                "write another type or container",
            )
        })?;
        put_str(&mut header, &entry.name);
        header.extend((entry.shape.len() as u32).to_le_bytes());
        // Files name the contiguous dimension first.
        entry.shape.iter().rev().for_each(|dim| header.extend((*dim as u64).to_le_bytes()));
        header.extend(id.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offsets.push(offset);
        offset = (offset + entry.bytes).next_multiple_of(ALIGNMENT);
    }
    header.resize((header.len() as u64).next_multiple_of(ALIGNMENT) as usize, 0);
    let start = header.len() as u64;
    let slots = offsets.iter().map(|offset| Slot { file: 0, at: start + offset }).collect();
    Ok((OutFile { name: name.into(), header, len: start + offset }, slots))
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Pair) {
    let array = |out: &mut Vec<u8>, kind: u32, count: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    let scalar = |out: &mut Vec<u8>, kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Pair::U32(v) => scalar(out, 4, &v.to_le_bytes()),
        Pair::F32(v) => scalar(out, 6, &v.to_le_bytes()),
        Pair::Bool(v) => scalar(out, 7, &[u8::from(*v)]),
        Pair::Str(text) => {
            out.extend(8u32.to_le_bytes());
            put_str(out, text);
        }
        Pair::F32s(list) => {
            array(out, 6, list.len());
            list.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Pair::I32s(list) => {
            array(out, 5, list.len());
            list.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Pair::Strs(list) => {
            array(out, 8, list.len());
            list.iter().for_each(|text| put_str(out, text));
        }
        Pair::Raw(bytes) => out.extend(bytes),
    }
}
