//! What a pickle describes: values in one list, which name each other by number.
//!
//! A value that holds others holds their numbers, so shared and circular values cost nothing to make or to drop, and
//! nothing here ever follows them further than it is told to.

use super::globals::Global;
use crate::files::DType;

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u32);

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool,
    Int(i64),
    /// A number or bytes that no tensor needs.
    Other,
    /// A number of more than 64 bits: its bytes, little-endian.
    Long(Box<[u8]>),
    Str(Box<str>),
    Tuple(Box<[Id]>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(View),
}

/// A run of elements in a record of the file.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    /// The name of its record.
    pub(super) key: Box<str>,
    /// Type of its elements; bytes without a type where there is none.
    pub(super) dtype: Option<DType>,
    /// Its elements (bytes without a type).
    pub(super) elems: u64,
    /// Elements before it in the record.
    pub(super) before: u64,
}

/// A tensor: places in a storage.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) storage: Storage,
    pub(super) dtype: DType,
    pub(super) offset: usize,
    pub(super) shape: Box<[usize]>,
    pub(super) strides: Box<[usize]>,
}

/// Most values a pickle may make: ten times what the largest published checkpoints have.
const MAX_VALUES: usize = 4_000_000;

/// All values of a pickle.
#[derive(Debug, Default)]
pub(super) struct Values(Vec<Value>);

impl Values {
    pub(super) fn add(&mut self, value: Value) -> Result<Id, String> {
        if self.0.len() >= MAX_VALUES {
            return Err(format!("its pickle makes more than {MAX_VALUES} values"));
        }
        self.0.push(value);
        Ok(Id(self.0.len() as u32 - 1))
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        &self.0[id.0 as usize]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Value> {
        self.0.iter()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut Value {
        &mut self.0[id.0 as usize]
    }

    pub(super) fn str(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The parts of a tuple or list.
    pub(super) fn parts(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(parts) => Some(parts),
            Value::List(parts) => Some(parts),
            _ => None,
        }
    }
}
