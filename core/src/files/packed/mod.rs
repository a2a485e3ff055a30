//! Weights made of several stored tensors: codes with scales, zero points, orders of columns.
//!
//! A format is one file and one line in [`FORMATS`]. When a checkpoint is opened, the formats its configuration names take
//! their tensors out of it and put one tensor with the weight's plain name in their place; whoever reads rows of it gets
//! values, and nothing is expanded beforehand. Which weights are quantised is decided by the tensors that are there, not
//! by the configuration's lists. Values are products of numbers widened to f32, in the order of the formats' definitions.

mod awq;
mod bits;
mod bnb_4bit;
mod bnb_int8;
mod fp8;
mod gptq;
mod int8;
mod int_pack;
pub(crate) mod matmul_nbits;
mod mlx;
mod mxfp4;
mod mxfp8;
mod nvfp4;
pub(in crate::files) mod scaled;

pub(super) use bits::E2M1;
pub(crate) use bits::{e4m3, e5m2, e8m0};

use super::dtype::DType;
use super::error::FileError;
use super::tensor::StoredTensor;
use crate::json::Config;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The tensors of one weight.
pub trait Packed: std::fmt::Debug + Send + Sync {
    /// The tensors as stored.
    fn parts(&self) -> &[StoredTensor];

    /// Rows it has in all.
    fn rows(&self) -> usize;

    /// Rows `rows`, which are there, as f32 into `out`, which has their size.
    fn read(&self, rows: Range<usize>, out: &mut [f32]);

    /// The same values with the last two axes swapped, where they can be read so.
    fn transposed(&self) -> Option<Arc<dyn Packed>> {
        None
    }
}

/// A format of weights.
pub struct WeightFormat {
    /// Its name.
    pub name: &'static str,
    /// What a weight is made of, and how values follow.
    pub about: &'static str,
    /// Who writes it, as the configuration says it.
    pub written_by: &'static str,
    /// Whether the quantisation settings may mean it.
    detect: fn(&Config) -> bool,
    /// Puts weights in the place of their tensors.
    gather: fn(&Config, &mut Tensors) -> Result<(), String>,
}

/// All formats, sorted by name.
pub const FORMATS: &[&WeightFormat] = &[
    &awq::FORMAT,
    &bnb_4bit::FORMAT,
    &bnb_int8::FORMAT,
    &fp8::FORMAT,
    &gptq::FORMAT,
    &int8::FORMAT,
    &int_pack::FORMAT,
    &matmul_nbits::FORMAT,
    &mlx::FORMAT,
    &mxfp4::FORMAT,
    &mxfp8::FORMAT,
    &nvfp4::FORMAT,
    &scaled::FORMAT,
];

/// What stands beside weights for activations and caches, which are kept in plain numbers here.
const UNUSED: &[&str] = &[
    ".activation_scale",
    ".input_global_scale",
    ".input_scale",
    ".input_zero_point",
    ".k_scale",
    ".output_scale",
    ".v_scale",
    ".weight_shape",
];

/// The tensors of a checkpoint while weights are gathered.
pub(super) struct Tensors(BTreeMap<String, StoredTensor>);

impl Tensors {
    /// Names of tensors with this ending, without it.
    fn ending(&self, end: &str) -> Vec<String> {
        self.0.keys().filter_map(|name| name.strip_suffix(end)).map(String::from).collect()
    }

    fn get(&self, module: &str, end: &str) -> Option<&StoredTensor> {
        self.0.get(&format!("{module}{end}"))
    }

    /// Takes a tensor that must be there.
    fn take(&mut self, module: &str, end: &str) -> Result<StoredTensor, String> {
        self.take_if(module, end).ok_or_else(|| format!("`{module}{end}` is missing"))
    }

    /// Takes a tensor of plain elements; a weight that another format made already is no part of one.
    fn take_if(&mut self, module: &str, end: &str) -> Option<StoredTensor> {
        let name = format!("{module}{end}");
        let is_plain = |tensor: &StoredTensor| tensor.dtype().block_elems() == 1 && tensor.dtype() != DType::PACKED;
        self.0.get(&name).is_some_and(is_plain).then(|| self.0.remove(&name))?
    }

    /// Puts a weight in.
    fn put(&mut self, name: String, format: &'static str, shape: &[usize], packed: Arc<dyn Packed>) {
        let tensor = StoredTensor::packed(&name, format, shape, packed);
        self.0.insert(name, tensor);
    }
}

/// Gathers the weights of `tensors` as the settings of `config` say.
///
/// # Errors
/// A method that no format is of, or tensors that do not fit together.
pub(super) fn gather(
    path: &Path,
    config: &Config,
    tensors: BTreeMap<String, StoredTensor>,
) -> Result<BTreeMap<String, StoredTensor>, FileError> {
    let Some(settings) = settings(config)? else { return Ok(tensors) };
    check_sizes(&settings)?;
    check_layout(path, &settings)?;
    let mut tensors = Tensors(tensors);
    let mut known = false;
    for format in FORMATS.iter().filter(|format| (format.detect)(&settings)) {
        known = true;
        let damaged = |what| FileError::Damaged { path: path.into(), what: format!("{}: {what}", format.name) };
        (format.gather)(&settings, &mut tensors).map_err(damaged)?;
    }
    if !known {
        let method = method(&settings).unwrap_or("unnamed");
        let what = format!("quantisation method `{method}`");
        let supported: Vec<&str> = FORMATS.iter().map(|format| format.written_by).collect();
        return Err(FileError::Unsupported { path: path.into(), what, supported: supported.join("; ") });
    }
    tensors.0.retain(|name, _| !UNUSED.iter().any(|end| name.ends_with(end)));
    Ok(tensors.0)
}

/// Whether `config` says how its weights are quantised.
pub(super) fn is_stated(config: &Config) -> Result<bool, FileError> {
    Ok(settings(config)?.is_some())
}

/// Layouts of compressed-tensors that are for one device or leave values out, sorted.
const UNREAD_LAYOUTS: &[&str] = &["marlin-24", "sparse-24-bitmask", "sparse-bitmask"];

/// That no layout is stated that is known and not read: its tensors could be taken for another's.
fn check_layout(path: &Path, settings: &Config) -> Result<(), FileError> {
    let sparse = settings.get("sparsity_config").and_then(|config| config.get("format"));
    let stated = [settings.get("format"), sparse].into_iter().flatten().filter_map(serde_json::Value::as_str);
    let mut stated = stated.filter(|_| is_compressed_tensors(settings));
    match stated.find(|format| UNREAD_LAYOUTS.contains(format)) {
        Some(format) => Err(FileError::Unsupported {
            path: path.into(),
            what: format!("the layout `{format}` of compressed-tensors"),
            supported: "float-quantized int-quantized mxfp4-pack-quantized mxfp8-quantized naive-quantized \
                        nvfp4-pack-quantized pack-quantized and mixtures of them"
                .into(),
        }),
        None => Ok(()),
    }
}

/// That the sizes of groups and blocks can be some; -1 stands for whole rows.
fn check_sizes(settings: &Config) -> Result<(), FileError> {
    for key in ["group_size", "q_group_size"] {
        if settings.opt_i64(key)?.is_some_and(|size| size == 0 || size < -1) {
            return Err(settings.wrong(key, "a positive number of elements, or -1 for whole rows").into());
        }
    }
    if settings.opt_usize_list("weight_block_size")?.is_some_and(|sizes| sizes.len() != 2 || sizes.contains(&0)) {
        return Err(settings.wrong("weight_block_size", "two positive numbers of elements").into());
    }
    Ok(())
}

/// The quantisation settings: of the whole model, or of its text model.
fn settings(config: &Config) -> Result<Option<Config>, FileError> {
    let text = config.text()?;
    for config in [config, &text] {
        for key in ["quantization_config", "compression_config", "quantization"] {
            if let Some(settings) = config.opt_object(key)? {
                return Ok(Some(settings));
            }
        }
    }
    Ok(None)
}

/// The name of the method in the settings.
fn method(settings: &Config) -> Option<&str> {
    settings.get("quant_method").and_then(serde_json::Value::as_str)
}

fn is_compressed_tensors(settings: &Config) -> bool {
    method(settings) == Some("compressed-tensors") || settings.has("config_groups") && method(settings).is_none()
}

fn is_modelopt(settings: &Config) -> bool {
    method(settings) == Some("modelopt") || settings.has("quant_algo")
}

/// Elements `from .. from + count` of a tensor of plain numbers, row by row.
fn floats(tensor: &StoredTensor, from: usize, count: usize) -> Vec<f32> {
    let size = tensor.dtype().block_bytes();
    let mut out = vec![0.0; count];
    tensor.dtype().dequant(&tensor.bytes()[from * size..(from + count) * size], &mut out);
    out
}

/// The one value of a tensor that has one.
fn scalar(tensor: &StoredTensor) -> Result<f32, String> {
    match tensor.elems() {
        1 => Ok(floats(tensor, 0, 1)[0]),
        count => Err(format!("`{}` has {count} values, one is meant", tensor.name())),
    }
}

/// That the elements of a tensor have this size.
fn of_bytes(tensor: &StoredTensor, size: usize) -> Result<(), String> {
    match tensor.dtype().block_bytes() {
        found if found == size => Ok(()),
        _ => Err(format!("`{}` is of type {}, elements of {size} bytes are meant", tensor.name(), tensor.dtype())),
    }
}

/// The two dimensions of a matrix.
fn matrix(tensor: &StoredTensor) -> Result<(usize, usize), String> {
    match tensor.shape() {
        [rows, columns] => Ok((*rows, *columns)),
        shape => Err(format!("`{}` has shape {shape:?}, two dimensions are meant", tensor.name())),
    }
}

/// That a tensor has this shape.
fn shaped(tensor: &StoredTensor, shape: &[usize]) -> Result<(), String> {
    if tensor.shape() == shape {
        return Ok(());
    }
    Err(format!("`{}` has shape {:?}, {shape:?} is meant", tensor.name(), tensor.shape()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_sorted() {
        assert!(FORMATS.is_sorted_by_key(|format| format.name));
        assert!(UNUSED.is_sorted());
    }
}
