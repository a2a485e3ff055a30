//! PyTorch state dicts: the zip archives that `torch.save` writes, and the pickles in a row that it wrote before.
//!
//! A pickle is a program. Here it is read by a machine that knows the names tensors are described with and nothing else
//! ([`globals`]), so that a file which wants anything run is refused by name. Tensors stay where they are in the mapped
//! file; those saved as views with other strides are put in order when their bytes are first asked for.

mod globals;
mod machine;
mod value;
mod zip;

use super::dtype::DType;
use super::error::FileError;
use super::map::Bytes;
use super::tensor::{StoredTensor, TensorFacts};
use machine::Pickle;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use value::{Id, Storage, Value, Values};

/// The number that the older form begins with.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Its only version.
const LEGACY_VERSION: i64 = 1001;
/// What training programs keep the weights under, beside their own state.
const WRAPPERS: &[&str] = &["model", "model_state_dict", "module", "state_dict"];
/// What wrappers put before every name.
const PREFIXES: &[&str] = &["module.", "_orig_mod."];

/// The tensors of one file.
pub(super) fn open_file(path: &Path) -> Result<Vec<StoredTensor>, FileError> {
    let file = Bytes::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    read(path, file.into())
}

/// The tensors of the file at `path` with these bytes.
pub(super) fn read(path: &Path, file: Arc<Bytes>) -> Result<Vec<StoredTensor>, FileError> {
    read_either(&file).map_err(|what| FileError::Damaged { path: path.into(), what })
}

fn read_either(file: &Arc<Bytes>) -> Result<Vec<StoredTensor>, String> {
    if file.starts_with(b"PK") {
        return read_zip(file);
    }
    if file.get(257..262) == Some(b"ustar") {
        return Err("it is a tar archive of the oldest PyTorch; save it again with a newer one".into());
    }
    read_legacy(file)
}

fn read_zip(file: &Arc<Bytes>) -> Result<Vec<StoredTensor>, String> {
    let archive = zip::Archive::open(file)?;
    let pickles: Vec<&str> =
        archive.names().filter(|name| *name == "data.pkl" || name.ends_with("/data.pkl")).collect();
    let [pickle] = pickles[..] else {
        return Err(format!("the archive has {} members named data.pkl, one is meant", pickles.len()));
    };
    let folder = pickle.strip_suffix("data.pkl").unwrap_or_default();
    let order = format!("{folder}byteorder");
    if archive.names().any(|name| name == order) && &file[archive.range(&order)?] != b"little" {
        return Err("its numbers are big-endian; only little-endian files are read".into());
    }
    let pickle = machine::read(&file[archive.range(pickle)?])?;
    let place = |storage: &Storage, size: usize| {
        let range = archive.range(&format!("{folder}data/{}", storage.key))?;
        check_fits(storage, size, range.len())?;
        Ok(range.start)
    };
    tensors(file, &pickle, &place)
}

/// Number, version, facts of the system, the state dict, keys, and then the storages in the order of the keys.
fn read_legacy(file: &Arc<Bytes>) -> Result<Vec<StoredTensor>, String> {
    let mut at = 0;
    let mut next = || -> Result<Pickle, String> {
        let pickle = machine::read(&file[at..])?;
        at += pickle.bytes;
        Ok(pickle)
    };
    let no_state = |what: &str| format!("it is neither an archive nor a state dict of PyTorch: {what}");
    let magic = next().map_err(|what| no_state(&what))?;
    if !matches!(magic.values.get(magic.root), Value::Long(bytes) if **bytes == MAGIC) {
        return Err(no_state("it does not begin with PyTorch's number"));
    }
    let version = next()?;
    if version.values.int(version.root) != Some(LEGACY_VERSION) {
        return Err(format!("it is not of the version {LEGACY_VERSION} of the older form"));
    }
    next()?;
    let state = next()?;
    let keys = next()?;
    let keys = keys.values.parts(keys.root).ok_or("its list of storages is none")?.iter().map(|key| {
        let key = keys.values.str(*key).ok_or("its list of storages has a key that is no text")?;
        Ok(key.to_string())
    });
    let keys = keys.collect::<Result<Vec<String>, String>>()?;
    let sizes = element_sizes(&state.values);
    let mut places = BTreeMap::new();
    for key in keys {
        let cut = || format!("the storage `{key}` is cut");
        let (count, rest) = file[at..].split_first_chunk::<8>().ok_or_else(cut)?;
        let size = sizes.get(&*key).copied().unwrap_or(1);
        let bytes = usize::try_from(u64::from_le_bytes(*count)).ok().and_then(|count| count.checked_mul(size));
        let bytes = bytes.filter(|bytes| *bytes <= rest.len()).ok_or_else(cut)?;
        let start = at + 8;
        at = start + bytes;
        if places.insert(key.clone(), start..at).is_some() {
            return Err(format!("the storage `{key}` is there twice"));
        }
    }
    let place = |storage: &Storage, size: usize| {
        let range = places.get(&*storage.key).ok_or_else(|| format!("it has no storage `{}`", storage.key))?;
        check_fits(storage, size, range.len())?;
        Ok(range.start)
    };
    tensors(file, &state, &place)
}

/// Bytes of an element of each storage that a tensor is of.
fn element_sizes(values: &Values) -> BTreeMap<Box<str>, usize> {
    let storages = values.all().filter_map(|value| match value {
        Value::Storage(storage) => Some((storage.key.clone(), storage.dtype.map_or(1, DType::block_bytes))),
        _ => None,
    });
    storages.collect()
}

/// That a record of `given` bytes holds the whole storage.
fn check_fits(storage: &Storage, size: usize, given: usize) -> Result<(), String> {
    let end = storage.before.checked_add(storage.elems).and_then(|end| end.checked_mul(size as u64));
    match end.filter(|end| *end <= given as u64) {
        Some(_) => Ok(()),
        None => Err(format!(
            "the storage `{}` claims {} elements of {size} bytes, its record has {given} bytes",
            storage.key, storage.elems
        )),
    }
}

/// The tensors of the state dict; `place` says where a storage's record begins.
fn tensors(
    file: &Arc<Bytes>,
    pickle: &Pickle,
    place: &dyn Fn(&Storage, usize) -> Result<usize, String>,
) -> Result<Vec<StoredTensor>, String> {
    let entries = state_dict(&pickle.values, pickle.root)?;
    let prefix = PREFIXES.iter().find(|prefix| entries.iter().all(|(name, _)| name.starts_with(**prefix)));
    let prefix = prefix.map_or(0, |prefix| prefix.len());
    let mut names = HashSet::new();
    let mut out = Vec::with_capacity(entries.len());
    for (name, id) in entries {
        let Value::Tensor(view) = pickle.values.get(id) else { continue };
        if !names.insert(name) {
            return Err(format!("the tensor `{name}` is there twice"));
        }
        let size = view.dtype.block_bytes();
        let fault = |what: String| format!("tensor `{name}`: {what}");
        let start = place(&view.storage, view.storage.dtype.map_or(1, DType::block_bytes)).map_err(fault)?;
        let before = usize::try_from(view.storage.before).ok().and_then(|before| before.checked_add(view.offset));
        let start = before.and_then(|before| before.checked_mul(size)?.checked_add(start));
        let start = start.ok_or_else(|| fault("its offset overflows".into()))?;
        let facts = TensorFacts {
            name: name[prefix..].into(),
            stored_name: name.into(),
            dtype: view.dtype,
            shape: view.shape.to_vec(),
        };
        let tensor = StoredTensor::strided(facts, file.clone(), start, &view.strides);
        out.push(tensor.map_err(|error| error.to_string())?);
    }
    Ok(out)
}

/// Names and values of the dictionary that holds the tensors: the file's own, or what it wraps.
fn state_dict(values: &Values, root: Id) -> Result<Vec<(&str, Id)>, String> {
    let mut at = root;
    for _ in 0..3 {
        let Value::Dict(pairs) = values.get(at) else {
            return Err("its pickle holds no dictionary of tensors".into());
        };
        let is_tensor = |id: &Id| matches!(values.get(*id), Value::Tensor(_));
        if pairs.iter().any(|(_, value)| is_tensor(value)) {
            let named = pairs.iter().filter(|(_, value)| is_tensor(value)).map(|(key, value)| {
                let name = values.str(*key).filter(|name| !name.is_empty());
                Ok((name.ok_or("a tensor's name is no text")?, *value))
            });
            return named.collect();
        }
        let wrapped = |(key, value): &&(Id, Id)| {
            let is_known = values.str(*key).is_some_and(|key| WRAPPERS.contains(&key));
            is_known && matches!(values.get(*value), Value::Dict(_))
        };
        at = pairs.iter().find(wrapped).ok_or("its pickle holds no tensors")?.1;
    }
    Err("its pickle holds no dictionary of tensors".into())
}
