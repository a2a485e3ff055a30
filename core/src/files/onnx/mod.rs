//! ONNX graphs, as Optimum exports them: weights under the names of the modules they belong to.
//!
//! Exporters keep the names of most weights, and turn those of matrix products round and name them by number; such a
//! weight gets the name of the node that takes it, which still is the module's. What the graph computes is not looked
//! at: the configuration beside it says which family it is. A node that quantises in a way that is not read is refused
//! by name, and constants of the graph that are no weights are left out.

mod external;
mod graph;
mod wire;

use super::dtype::DType;
use super::error::FileError;
use super::map::Bytes;
use super::packed::matmul_nbits::{self, Sizes};
use super::tensor::{StoredTensor, TensorFacts};
use external::External;
use graph::{Data, Graph, Initialiser, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Element types by their number in the format.
const TYPES: &[(u64, &str, Option<DType>)] = &[
    (1, "FLOAT", Some(DType::F32)),
    (2, "UINT8", Some(DType::U8)),
    (3, "INT8", Some(DType::I8)),
    (4, "UINT16", Some(DType::U16)),
    (5, "INT16", Some(DType::I16)),
    (6, "INT32", Some(DType::I32)),
    (7, "INT64", Some(DType::I64)),
    (8, "STRING", None),
    (9, "BOOL", Some(DType::BOOL)),
    (10, "FLOAT16", Some(DType::F16)),
    (11, "DOUBLE", Some(DType::F64)),
    (12, "UINT32", Some(DType::U32)),
    (13, "UINT64", Some(DType::U64)),
    (14, "COMPLEX64", None),
    (15, "COMPLEX128", None),
    (16, "BFLOAT16", Some(DType::BF16)),
    (17, "FLOAT8E4M3FN", Some(DType::F8_E4M3)),
    (18, "FLOAT8E4M3FNUZ", None),
    (19, "FLOAT8E5M2", Some(DType::F8_E5M2)),
    (20, "FLOAT8E5M2FNUZ", None),
    (21, "UINT4", None),
    (22, "INT4", None),
    (23, "FLOAT4E2M1", None),
    (24, "FLOAT8E8M0", Some(DType::F8_E8M0)),
];

/// Nodes whose weights are in a form that is not read, sorted.
const UNREAD: &[&str] = &[
    "DequantizeLinear",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulBnb4",
    "MatMulInteger",
    "QLinearMatMul",
    "QMoE",
];

/// The weights of the graph at `path`, and the files they lie in.
pub(super) fn open_file(path: &Path) -> Result<(Vec<StoredTensor>, Vec<PathBuf>), FileError> {
    let file = Bytes::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    read(path, file.into())
}

/// The weights of the graph at `path` with these bytes, and the files they lie in.
pub(super) fn read(path: &Path, file: Arc<Bytes>) -> Result<(Vec<StoredTensor>, Vec<PathBuf>), FileError> {
    let mut external = External::new(path);
    let tensors = read_graph(&file, &mut external).map_err(|fault| match fault {
        Fault::Damaged(what) => FileError::Damaged { path: path.into(), what },
        Fault::Unsupported(what, supported) => FileError::Unsupported { path: path.into(), what, supported },
    })?;
    let files = [path.to_path_buf()].into_iter().chain(external.files()).collect();
    Ok((tensors, files))
}

/// What is wrong with the file.
enum Fault {
    /// It breaks the format's rules.
    Damaged(String),
    /// Something sound that is not read, and what is.
    Unsupported(String, String),
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

fn read_graph(file: &Arc<Bytes>, external: &mut External<'_>) -> Result<Vec<StoredTensor>, Fault> {
    let graph = graph::read(file)?;
    let mut stored = BTreeMap::new();
    for initialiser in &graph.initialisers {
        let name = &initialiser.name;
        if name.is_empty() {
            return Err("it has a tensor without a name".to_string().into());
        }
        let tensor = tensor(file, external, initialiser)?;
        if stored.insert(name.as_str(), tensor).is_some() {
            return Err(format!("the tensor `{name}` is there twice").into());
        }
    }
    named(&graph, &stored)
}

/// The tensor of an initialiser, where its values lie.
fn tensor(file: &Arc<Bytes>, external: &mut External<'_>, initialiser: &Initialiser) -> Result<StoredTensor, Fault> {
    let name = &initialiser.name;
    let fault = |what: &str| format!("tensor `{name}`: {what}");
    let dtype = match TYPES.iter().find(|(id, ..)| *id == initialiser.data_type) {
        Some((_, _, Some(dtype))) => *dtype,
        Some((_, known, None)) => {
            let read: Vec<_> = TYPES.iter().filter(|(.., dtype)| dtype.is_some()).map(|(_, name, _)| *name).collect();
            return Err(Fault::Unsupported(format!("type {known} of tensor `{name}`"), read.join(" ")));
        }
        None => return Err(fault(&format!("the data type {} does not exist", initialiser.data_type)).into()),
    };
    let sizes = initialiser.dims.iter().map(|dim| i64::try_from(*dim).ok().and_then(|dim| usize::try_from(dim).ok()));
    let shape: Option<Vec<usize>> = sizes.collect();
    let shape = shape.ok_or_else(|| fault("it has a negative dimension"))?;
    let facts = TensorFacts { name: name.clone(), stored_name: name.clone(), dtype, shape };
    let bytes = facts.bytes().map_err(|error| error.to_string())?;
    if initialiser.is_external {
        let (file, range) = external.find(&initialiser.external, bytes).map_err(|what| fault(&what))?;
        return Ok(StoredTensor::new(facts, file, range.start).map_err(|error| error.to_string())?);
    }
    let (given, made) = match &initialiser.data {
        Data::None => (0, None),
        Data::Raw(range) => (range.len(), None),
        Data::Numbers(numbers) => {
            let size = dtype.block_bytes();
            let made: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(size)).collect();
            (made.len(), Some(made))
        }
    };
    if given != bytes {
        let shape = &facts.shape;
        return Err(fault(&format!("{dtype} {shape:?} needs {bytes} bytes, it has {given}")).into());
    }
    let tensor = match (&initialiser.data, made) {
        (Data::Raw(range), _) => StoredTensor::new(facts, file.clone(), range.start),
        (_, made) => StoredTensor::new(facts, Arc::new(Bytes::Owned(made.unwrap_or_default())), 0),
    };
    Ok(tensor.map_err(|error| error.to_string())?)
}

/// Weights under their modules' names.
fn named(graph: &Graph, stored: &BTreeMap<&str, StoredTensor>) -> Result<Vec<StoredTensor>, Fault> {
    let mut out: BTreeMap<String, StoredTensor> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for node in &graph.nodes {
        let of_module = |end: &str| module(&node.name).map(|module| format!("{module}.{end}"));
        let input = |i: usize| node.inputs.get(i).and_then(|name| stored.get(name.as_str()));
        if UNREAD.contains(&&*node.op) && node.inputs.iter().any(|name| stored.contains_key(name.as_str())) {
            let what = format!("the node `{}` of type {}", node.name, node.op);
            return Err(Fault::Unsupported(what, "weights of MatMul, Gemm and MatMulNBits".into()));
        }
        let weight = match (&*node.op, input(1)) {
            ("MatMul", Some(weight)) if is_number(weight.name()) => Some(turned(weight)?),
            ("Gemm", Some(weight)) if is_number(weight.name()) => match node.ints.get("transB") {
                Some(1) => Some(weight.clone()),
                _ => Some(turned(weight)?),
            },
            ("MatMulNBits", Some(_)) => Some(nbits(node, &input)?),
            _ => None,
        };
        let Some(weight) = weight else { continue };
        taken.extend(node.inputs.iter().filter(|name| stored.contains_key(name.as_str())).map(String::as_str));
        let Some(name) = of_module("weight") else { continue };
        let bias = match &*node.op {
            "MatMulNBits" => input(5),
            "Gemm" => input(2).filter(|bias| is_number(bias.name())),
            _ => None,
        };
        if let Some((bias, name)) = bias.zip(of_module("bias")) {
            out.insert(name.clone(), bias.renamed(&name));
        }
        out.insert(name.clone(), weight.renamed(&name));
    }
    let rotation = graph.nodes.iter().filter(|node| node.name.contains("rotary_emb"));
    let of_rotation: BTreeSet<&str> = rotation.flat_map(|node| &node.inputs).map(String::as_str).collect();
    let is_constant = |name: &str, tensor: &StoredTensor| {
        is_number(name) && (tensor.elems() <= 1 || !tensor.dtype().is_float() || of_rotation.contains(name))
    };
    for (name, tensor) in stored {
        if !taken.contains(name) && !is_constant(name, tensor) {
            out.insert((*name).into(), tensor.clone());
        }
    }
    Ok(out.into_values().collect())
}

/// Whether a name was given by the exporter: a number with the type of a node, or a place in the graph.
fn is_number(name: &str) -> bool {
    name.starts_with("onnx::") || name.starts_with('/')
}

/// The module of a node: `/model/layers.0/mlp/up_proj/MatMul` is of `model.layers.0.mlp.up_proj`.
fn module(node: &str) -> Option<String> {
    let (path, _) = node.strip_prefix('/')?.rsplit_once('/')?;
    Some(path.replace('/', "."))
}

fn turned(weight: &StoredTensor) -> Result<StoredTensor, String> {
    weight.transposed().map_err(|error| error.to_string())
}

/// The weight of a MatMulNBits node.
fn nbits<'a>(node: &Node, input: &impl Fn(usize) -> Option<&'a StoredTensor>) -> Result<StoredTensor, Fault> {
    let name = &node.name;
    let size = |key: &str| {
        let found = node.ints.get(key).and_then(|value| usize::try_from(*value).ok()).filter(|value| *value > 0);
        found.ok_or_else(|| format!("the node `{name}` states no sound `{key}`"))
    };
    if node.ints.get("weight_prepacked").is_some_and(|packed| *packed != 0) {
        let what = format!("the node `{name}`, whose weights are laid out for one device,");
        return Err(Fault::Unsupported(what, "MatMulNBits with weight_prepacked 0".into()));
    }
    if input(4).is_some() {
        let what = format!("the group index of the node `{name}`");
        return Err(Fault::Unsupported(what, "MatMulNBits without g_idx".into()));
    }
    let bits = node.ints.get("bits").map_or(Ok(4), |_| size("bits"))?;
    let sizes = Sizes { rows: size("N")?, width: size("K")?, bits, block: size("block_size")? };
    let part = |i: usize| input(i).cloned().ok_or_else(|| format!("the node `{name}` lacks its input {i}"));
    let plain = node.inputs.get(3).is_none_or(|zeros| zeros.is_empty());
    let zeros = if plain { None } else { Some(part(3)?) };
    Ok(matmul_nbits::weight(name, sizes, part(1)?, part(2)?, zeros)?)
}
