//! The names that a pickle may mention, and what each stands for. Nothing is imported and nothing is called: a name is
//! looked up in this list, and what it would make is made here or not at all.

use super::value::{Id, Storage, Value, Values, View};
use crate::files::DType;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    /// A type of elements.
    DType(DType),
    /// A dictionary.
    Dict,
    /// A tensor from a storage, an offset, a shape and strides.
    Tensor,
    /// The same with a type of elements, over bytes without one.
    TensorOfType,
    /// The tensor that is its first argument.
    Parameter,
    /// A tensor of a class by the function and the arguments named.
    OfClass,
    /// A class of tensors.
    Class,
    /// A class of storages; none where its elements have no type.
    Storage(Option<DType>),
    /// The tuple that is its argument.
    Size,
    /// A value that no tensor needs.
    Other,
}

/// All names, sorted.
const GLOBALS: &[(&str, &str, Global)] = &[
    ("collections", "OrderedDict", Global::Dict),
    ("torch", "BFloat16Storage", Global::Storage(Some(DType::BF16))),
    ("torch", "BoolStorage", Global::Storage(Some(DType::BOOL))),
    ("torch", "ByteStorage", Global::Storage(Some(DType::U8))),
    ("torch", "CharStorage", Global::Storage(Some(DType::I8))),
    ("torch", "DoubleStorage", Global::Storage(Some(DType::F64))),
    ("torch", "FloatStorage", Global::Storage(Some(DType::F32))),
    ("torch", "HalfStorage", Global::Storage(Some(DType::F16))),
    ("torch", "IntStorage", Global::Storage(Some(DType::I32))),
    ("torch", "LongStorage", Global::Storage(Some(DType::I64))),
    ("torch", "ShortStorage", Global::Storage(Some(DType::I16))),
    ("torch", "Size", Global::Size),
    ("torch", "Tensor", Global::Class),
    ("torch", "bfloat16", Global::DType(DType::BF16)),
    ("torch", "bool", Global::DType(DType::BOOL)),
    ("torch", "device", Global::Other),
    ("torch", "float16", Global::DType(DType::F16)),
    ("torch", "float32", Global::DType(DType::F32)),
    ("torch", "float64", Global::DType(DType::F64)),
    ("torch", "float8_e4m3fn", Global::DType(DType::F8_E4M3)),
    ("torch", "float8_e5m2", Global::DType(DType::F8_E5M2)),
    ("torch", "float8_e8m0fnu", Global::DType(DType::F8_E8M0)),
    ("torch", "int16", Global::DType(DType::I16)),
    ("torch", "int32", Global::DType(DType::I32)),
    ("torch", "int64", Global::DType(DType::I64)),
    ("torch", "int8", Global::DType(DType::I8)),
    ("torch", "uint16", Global::DType(DType::U16)),
    ("torch", "uint32", Global::DType(DType::U32)),
    ("torch", "uint64", Global::DType(DType::U64)),
    ("torch", "uint8", Global::DType(DType::U8)),
    ("torch._tensor", "_rebuild_from_type_v2", Global::OfClass),
    ("torch._utils", "_rebuild_parameter", Global::Parameter),
    ("torch._utils", "_rebuild_parameter_with_state", Global::Parameter),
    ("torch._utils", "_rebuild_tensor", Global::Tensor),
    ("torch._utils", "_rebuild_tensor_v2", Global::Tensor),
    ("torch._utils", "_rebuild_tensor_v3", Global::TensorOfType),
    ("torch.nn.parameter", "Parameter", Global::Class),
    ("torch.storage", "TypedStorage", Global::Storage(None)),
    ("torch.storage", "UntypedStorage", Global::Storage(None)),
];

/// What `module.name` stands for.
pub(super) fn find(module: &str, name: &str) -> Result<Global, String> {
    let found = GLOBALS.iter().find(|(known, its, _)| *known == module && *its == name);
    found.map(|(_, _, global)| *global).ok_or_else(|| {
        let (module, name): (String, String) = (module.chars().take(80).collect(), name.chars().take(80).collect());
        format!(
            "its pickle names `{}.{}`, which is no part of a state dict of plain tensors",
            module.escape_debug(),
            name.escape_debug()
        )
    })
}

/// What the global would make of the arguments.
pub(super) fn make(values: &mut Values, global: Global, arguments: &[Id]) -> Result<Value, String> {
    match (global, arguments) {
        (Global::Dict, []) => Ok(Value::Dict(Vec::new())),
        (Global::Dict, [pairs]) => dict(values, *pairs),
        (Global::Tensor, [storage, offset, shape, strides, ..]) => {
            let storage = storage_of(values, *storage)?;
            let dtype = storage.dtype.ok_or("its pickle has a tensor over a storage without a type")?;
            view(values, storage, dtype, [*offset, *shape, *strides])
        }
        (Global::TensorOfType, [storage, offset, shape, strides, _, _, dtype, ..]) => {
            let Value::Global(Global::DType(dtype)) = *values.get(*dtype) else {
                return Err("its pickle has a tensor without a type of elements".into());
            };
            let mut storage = storage_of(values, *storage)?;
            if storage.dtype.is_none() {
                storage.elems /= dtype.block_bytes() as u64;
            }
            view(values, storage, dtype, [*offset, *shape, *strides])
        }
        (Global::Parameter, [tensor, ..]) => match values.get(*tensor) {
            Value::Tensor(view) => Ok(Value::Tensor(view.clone())),
            _ => Err("its pickle has a parameter that is no tensor".into()),
        },
        (Global::OfClass, [function, class, inner, ..]) => {
            let function = match (values.get(*function), values.get(*class)) {
                // Not this one again: nothing here may go deeper than the file's own words.
                (Value::Global(function), Value::Global(Global::Class)) if *function != Global::OfClass => *function,
                _ => return Err("its pickle has a tensor of an unknown class".into()),
            };
            let inner = values.parts(*inner).ok_or("its pickle has a tensor without arguments")?.to_vec();
            make(values, function, &inner)
        }
        (Global::Size, [parts]) => match values.parts(*parts) {
            Some(parts) => Ok(Value::Tuple(parts.into())),
            None => Err("its pickle has a size that is no tuple".into()),
        },
        (Global::Other, _) => Ok(Value::Other),
        _ => Err(format!("its pickle calls something with {} arguments that cannot be so called", arguments.len())),
    }
}

fn dict(values: &Values, pairs: Id) -> Result<Value, String> {
    let fault = "its pickle makes a dictionary of something else than pairs";
    let pair = |id: &Id| match values.parts(*id) {
        Some([key, value]) => Some((*key, *value)),
        _ => None,
    };
    let pairs = values.parts(pairs).and_then(|pairs| pairs.iter().map(pair).collect());
    pairs.map(Value::Dict).ok_or_else(|| fault.into())
}

fn storage_of(values: &Values, id: Id) -> Result<Storage, String> {
    match values.get(id) {
        Value::Storage(storage) => Ok(storage.clone()),
        _ => Err("its pickle has a tensor over something that is no storage".into()),
    }
}

/// A tensor of places that all lie in the storage.
fn view(values: &Values, storage: Storage, dtype: DType, [offset, shape, strides]: [Id; 3]) -> Result<Value, String> {
    let size = |id: Id| values.int(id).and_then(|value| usize::try_from(value).ok());
    let sizes = |id: Id| -> Option<Box<[usize]>> { values.parts(id)?.iter().map(|part| size(*part)).collect() };
    let key = &storage.key;
    let offset = size(offset).ok_or_else(|| format!("a tensor of storage `{key}` has no sound offset"))?;
    let shape = sizes(shape).ok_or_else(|| format!("a tensor of storage `{key}` has no sound shape"))?;
    let strides = sizes(strides).ok_or_else(|| format!("a tensor of storage `{key}` has no sound strides"))?;
    if shape.len() != strides.len() {
        let (dims, strides) = (shape.len(), strides.len());
        return Err(format!("a tensor of storage `{key}` has {dims} dimensions and {strides} strides"));
    }
    let past = || format!("a tensor of shape {shape:?} runs past its storage `{key}` of {} elements", storage.elems);
    let elems = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim as u64)).ok_or_else(past)?;
    let steps = shape.iter().zip(&strides).map(|(dim, stride)| dim.saturating_sub(1).checked_mul(*stride));
    let last = steps.into_iter().try_fold(offset, |at, step| at.checked_add(step?)).ok_or_else(past)?;
    // More elements than the storage has would be made by repeating them: a few bytes could claim any memory.
    if elems > 0 && last as u64 >= storage.elems || elems > storage.elems {
        return Err(past());
    }
    Ok(Value::Tensor(View { storage, dtype, offset, shape, strides }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_others_are_refused() {
        assert!(GLOBALS.is_sorted_by_key(|(module, name, _)| (*module, *name)));
        assert!(find("torch", "FloatStorage").is_ok());
        for (module, name) in [("os", "system"), ("torch._utils_evil", "_rebuild_tensor"), ("torch", "Size.count")] {
            assert!(find(module, name).unwrap_err().contains(&format!("`{module}.{name}`")));
        }
    }
}
