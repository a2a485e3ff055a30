//! GGUF, versions 2 and 3: the container.
//!
//! Everything a file says of itself is checked before it is believed, and no count is allocated for before the bytes
//! it stands for are known to be there. Metadata stay where they are in the mapped file and are decoded when asked for.

pub(crate) mod arch;
mod ids;
mod joined;
mod metadata;
mod reader;

pub use metadata::Metadata;

use super::dtype::DType;
use super::error::FileError;
use super::map::Bytes;
use super::packed::scaled;
use super::tensor::{StoredTensor, TensorFacts};
use reader::Reader;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Where tensor data begin is a multiple of this, unless the file says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment that is believed.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Bytes of the shortest key-value pair and of the shortest tensor description.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
const MAX_DIMS: u32 = 4;
const MAX_NAME_BYTES: usize = 63;

/// An opened file.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub(super) metadata: Metadata,
    /// Tensors under the names they have in the file.
    pub(super) tensors: Vec<StoredTensor>,
}

/// Opens the file at `path`.
pub(super) fn open(path: &Path) -> Result<Gguf, FileError> {
    let file = Bytes::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    read(path, file.into())
}

/// Reads the file at `path` with these bytes.
pub(super) fn read(path: &Path, file: Arc<Bytes>) -> Result<Gguf, FileError> {
    read_file(path, &file).map_err(|fault| match fault {
        Fault::Damaged(what) => FileError::Damaged { path: path.into(), what },
        Fault::Type(what) => {
            let supported = DType::names(|format| format.gguf_id.is_some());
            FileError::Unsupported { path: path.into(), what, supported }
        }
    })
}

/// The tensors of the file at `path` with these bytes, its configuration made on the way.
pub(super) fn tensors(path: &Path, file: Arc<Bytes>) -> Result<Vec<StoredTensor>, FileError> {
    let gguf = read(path, file)?;
    let damaged = |what| FileError::Damaged { path: path.into(), what };
    let tensors = scaled::gather_gguf(gguf.tensors.clone()).map_err(damaged)?;
    let Some(arch) = gguf.metadata.str("general.architecture").and_then(arch::find) else { return Ok(tensors) };
    let named = tensors.into_iter().map(|tensor| {
        let name = arch.tensor_name(tensor.stored_name()).unwrap_or_else(|| tensor.stored_name().into());
        (name.clone(), tensor.renamed(&name))
    });
    let mut named = named.collect();
    arch.config(&gguf);
    arch.gather(&gguf, &mut named).map_err(damaged)?;
    Ok(named.into_values().collect())
}

/// What is wrong with the file.
pub(super) enum Fault {
    /// It breaks the format's rules.
    Damaged(String),
    /// A sound element type that is not read.
    Type(String),
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

fn read_file(path: &Path, file: &Arc<Bytes>) -> Result<Gguf, Fault> {
    let mut reader = Reader::new(file);
    let (tensor_count, pair_count) = read_header(&mut reader)?;
    let metadata = Metadata::read(path, file, &mut reader, pair_count)?;
    let alignment = read_alignment(&metadata)?;
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let (facts, offset) = read_tensor(&mut reader)?;
        if !names.insert(facts.name.clone()) {
            return Err(format!("the tensor name `{}` appears twice", facts.name).into());
        }
        entries.push((facts, offset));
    }
    let data_start = (reader.at() as u64).next_multiple_of(alignment);
    let mut next = 0u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (facts, offset) in entries {
        if offset != next {
            return Err(format!("tensor `{}` is at offset {offset}, {next} is next", facts.name).into());
        }
        let bytes = facts.bytes().map_err(|error| error.to_string())? as u64;
        let name = facts.name.clone();
        let overflow = || format!("the size of tensor `{name}` overflows");
        next = next.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(alignment)).ok_or_else(overflow)?;
        let start =
            data_start.checked_add(offset).and_then(|start| usize::try_from(start).ok()).ok_or_else(overflow)?;
        tensors.push(StoredTensor::new(facts, file.clone(), start).map_err(|error| error.to_string())?);
    }
    Ok(Gguf { metadata, tensors })
}

/// Counts of tensors and of metadata pairs.
fn read_header(reader: &mut Reader<'_>) -> Result<(u64, u64), String> {
    match reader.take(4, "the magic")? {
        b"GGUF" => {}
        b"FUGG" => return Err("it is big-endian; only little-endian files are read".into()),
        b"lmgg" | b"fmgg" | b"tjgg" => return Err("it is of the GGML format that came before GGUF".into()),
        other => {
            return Err(format!("it begins with {}, not with GGUF", String::from_utf8_lossy(other).escape_debug()));
        }
    }
    let version = reader.u32("the version")?;
    if version & 0xffff == 0 && version != 0 {
        return Err("it is big-endian; only little-endian files are read".into());
    }
    if !(2..=3).contains(&version) {
        return Err(format!("it is GGUF version {version}; versions 2 and 3 are read"));
    }
    let tensor_count = reader.u64("the number of tensors")?;
    let pair_count = reader.u64("the number of metadata pairs")?;
    for (count, least, what) in
        [(tensor_count, MIN_TENSOR_BYTES, "tensors"), (pair_count, MIN_PAIR_BYTES, "metadata pairs")]
    {
        if count > reader.left() as u64 / least {
            return Err(format!("it claims {count} {what}, more than its {} bytes can hold", reader.left()));
        }
    }
    Ok((tensor_count, pair_count))
}

fn read_alignment(metadata: &Metadata) -> Result<u64, String> {
    let key = "general.alignment";
    if !metadata.has(key) {
        return Ok(DEFAULT_ALIGNMENT);
    }
    match metadata.u32_exactly(key) {
        Some(alignment) if alignment.is_power_of_two() && u64::from(alignment) <= MAX_ALIGNMENT => Ok(alignment.into()),
        Some(alignment) => Err(format!("{key} is {alignment}, not a power of two up to {MAX_ALIGNMENT}")),
        None => Err(format!("{key} is no 32-bit number")),
    }
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<(TensorFacts, u64), Fault> {
    let name = reader.string("a tensor name")?;
    let name = std::str::from_utf8(name).map_err(|_| "a tensor name is not UTF-8".to_string())?.to_string();
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("the tensor name `{name}` is longer than {MAX_NAME_BYTES} bytes").into());
    }
    let dims = reader.u32("the number of dimensions")?;
    if dims > MAX_DIMS {
        return Err(format!("tensor `{name}` has {dims} dimensions, more than {MAX_DIMS}").into());
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = reader.u64("a dimension")?;
        let dim = i64::try_from(dim).ok().and_then(|dim| usize::try_from(dim).ok());
        shape.push(dim.ok_or_else(|| format!("tensor `{name}` has a negative dimension"))?);
    }
    // Files name the contiguous dimension first.
    shape.reverse();
    let id = reader.u32("an element type")?;
    let offset = reader.u64("a tensor offset")?;
    let dtype = match DType::from_gguf(id) {
        Some(dtype) => dtype,
        None => {
            return Err(match ids::name(id) {
                Some(known) => Fault::Type(format!("type {known} of tensor `{name}`")),
                None => Fault::Damaged(format!("tensor `{name}` has the element type {id}, which does not exist")),
            });
        }
    };
    Ok((TensorFacts { stored_name: name.clone(), name, dtype, shape }, offset))
}
