//! Random checkpoints of a configuration's shapes, for measuring speed without weights.
//!
//! Values are scaled as weights are initialised, so that outputs are finite and greedy tokens vary. The result says that
//! it is synthetic, in a key of its configuration or metadata that later copies keep: no quality is ever measured on it.

use super::error::ExportError;
use super::gguf::{self, Pair, arch};
use super::random::{Stream, Table};
use super::vocabulary::Synthetic;
use super::write::{self, Draft, PIECE_ELEMS, Progress, Sink, Slot, Work};
use crate::files::{DType, FileError, StorageFacts};
use crate::json::{self, Config};
use crate::model::declare::declared;
use half::{bf16, f16};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// The key of config.json that marks a synthetic checkpoint.
pub const SYNTHETIC_CONFIG_KEY: &str = "crit_synthetic";
/// The key of GGUF metadata and of safetensors' `__metadata__` that marks one.
pub const SYNTHETIC_METADATA_KEY: &str = "crit.synthetic";

/// The container to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder of safetensors with its JSON files.
    Safetensors,
    /// One GGUF file.
    Gguf,
}

/// The element type of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Number {
    fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

/// What to write.
#[derive(Clone, Debug)]
pub struct SynthOptions {
    /// Container.
    pub target: Target,
    /// Element type of matrices; vectors of a GGUF file are F32, as everywhere.
    pub number: Number,
    /// Decides the values.
    pub seed: u64,
    /// Threads; all cores if `None`.
    pub threads: Option<usize>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Tensors.
    pub tensors: usize,
    /// Weights in all.
    pub parameters: u64,
    /// Bytes of all files with weights.
    pub bytes: u64,
}

/// Writes a random checkpoint of the config.json at `config` to `out`.
///
/// # Errors
/// A configuration of no supported family, something at `out`, or a file that cannot be written.
pub fn synth(
    config: &Path,
    out: &Path,
    options: &SynthOptions,
    progress: &Progress<'_>,
) -> Result<Written, ExportError> {
    let file = if config.is_dir() { config.join("config.json") } else { config.to_path_buf() };
    if !file.exists() {
        return Err(FileError::NotFound { path: file }.into());
    }
    let whole = Config::from_value(json::parse_file(&file)?, &file.display().to_string())?;
    let text = whole.text()?;
    let plan = Plan { whole, text, options, progress };
    match options.target {
        Target::Safetensors => plan.safetensors(out),
        Target::Gguf => plan.gguf(out),
    }
}

struct Plan<'a> {
    whole: Config,
    text: Config,
    options: &'a SynthOptions,
    progress: &'a Progress<'a>,
}

impl Plan<'_> {
    fn safetensors(&self, out: &Path) -> Result<Written, ExportError> {
        let (program, weights) = declared(&self.text)?;
        let storage = StorageFacts::of_safetensors(&self.text);
        let dtype = self.options.number.dtype();
        // A wrapper's text model lies below a prefix.
        let wrapped = self.whole.has("text_config");
        let stored = |name: &str| match name.strip_prefix("model.") {
            Some(rest) if wrapped => format!("model.language_model.{rest}"),
            _ => name.to_string(),
        };
        let entries: Vec<super::safetensors::Entry> = weights
            .iter()
            .map(|weight| super::safetensors::Entry {
                name: stored(&weight.name),
                dtype: dtype.name(),
                shape: weight.shape.clone(),
                bytes: bytes(&weight.shape, dtype),
            })
            .collect();
        let metadata = [("format", "pt".to_string()), (SYNTHETIC_METADATA_KEY, "true".to_string())];
        let layout = super::safetensors::layout(&entries, &metadata)?;
        let mut tables = Tables::default();
        let mut work: Vec<Box<dyn Work>> = Vec::new();
        for (weight, slot) in weights.iter().zip(&layout.slots) {
            let (mean, deviation) = distribution(&weight.name, storage.norm_weight_offset);
            let values = tables.get(dtype, mean, deviation);
            work.push(Box::new(Fill::new(&weight.name, &weight.shape, *slot, values, self.options.seed)));
        }
        let draft = Draft::new(out)?;
        let mut config = self.whole.map().clone();
        config.insert(SYNTHETIC_CONFIG_KEY.into(), true.into());
        config.insert("torch_dtype".into(), torch_name(self.options.number).into());
        draft.write("config.json", &pretty(&Value::Object(config)))?;
        let (tokenizer, tokenizer_config) = Synthetic::new(&self.text, program.vocab)?.files();
        draft.write("tokenizer.json", tokenizer.to_string().as_bytes())?;
        draft.write("tokenizer_config.json", &pretty(&tokenizer_config))?;
        if let Some(index) = &layout.index {
            draft.write("model.safetensors.index.json", &pretty(index))?;
        }
        write::write(&draft, &layout.files, &work, self.threads(), self.progress)?;
        draft.keep_folder()?;
        Ok(written(weights.iter().map(|weight| weight.shape.as_slice()), layout.files.iter().map(|file| file.len)))
    }

    fn gguf(&self, out: &Path) -> Result<Written, ExportError> {
        let (program, weights) = declared(&self.text)?;
        let arch = arch::find(&self.text)?;
        let storage = StorageFacts::of_safetensors(&self.text);
        let tensors = arch.tensors(&self.text, &storage, &weights)?;
        let mut entries: Vec<gguf::Entry> = tensors
            .iter()
            .map(|tensor| {
                let dtype =
                    if is_vector(&tensor.name, &tensor.shape) { DType::F32 } else { self.options.number.dtype() };
                let bytes = bytes(&tensor.shape, dtype);
                gguf::Entry { name: tensor.name.clone(), dtype, shape: tensor.shape.clone(), bytes }
            })
            .collect();
        let freqs = arch::rope_freqs(&self.text)?;
        if let Some(freqs) = &freqs {
            let shape = vec![freqs.len()];
            entries.push(gguf::Entry {
                name: "rope_freqs.weight".into(),
                dtype: DType::F32,
                bytes: bytes(&shape, DType::F32),
                shape,
            });
        }
        let file_type = match self.options.number {
            Number::F32 => 0,
            Number::F16 => 1,
            Number::Bf16 => 32,
        };
        let mut pairs = general(arch.name, &name_of(&self.whole), file_type);
        pairs.push((SYNTHETIC_METADATA_KEY.into(), Pair::Bool(true)));
        pairs.extend(arch.pairs(&self.text)?);
        pairs.extend(Synthetic::new(&self.text, program.vocab)?.pairs());
        let (file, slots) = gguf::layout("model.gguf", &pairs, &entries)?;
        let mut work: Vec<Box<dyn Work>> = Vec::new();
        let mut tables = Tables::default();
        for (entry, slot) in entries.iter().zip(&slots) {
            // Norms are stored as the factor itself.
            let (mean, deviation) = distribution(&entry.name, 0.0);
            let values = tables.get(entry.dtype, mean, deviation);
            work.push(Box::new(Fill::new(&entry.name, &entry.shape, *slot, values, self.options.seed)));
        }
        if let (Some(freqs), Some(slot)) = (freqs, slots.last()) {
            work.pop();
            work.push(Box::new(Constant { slot: *slot, bytes: freqs.iter().flat_map(|v| v.to_le_bytes()).collect() }));
        }
        let draft = Draft::new(out)?;
        let len = file.len;
        write::write(&draft, &[file], &work, self.threads(), self.progress)?;
        draft.keep_file("model.gguf", &[])?;
        Ok(written(tensors.iter().map(|tensor| tensor.shape.as_slice()), [len].into_iter()))
    }

    fn threads(&self) -> usize {
        self.options.threads.unwrap_or_else(write::all_cores)
    }
}

fn written<'a>(shapes: impl Iterator<Item = &'a [usize]>, files: impl Iterator<Item = u64>) -> Written {
    let sizes: Vec<u64> = shapes.map(elems).collect();
    Written { tensors: sizes.len(), parameters: sizes.iter().sum(), bytes: files.sum() }
}

fn elems(shape: &[usize]) -> u64 {
    shape.iter().map(|dim| *dim as u64).product()
}

fn bytes(shape: &[usize], dtype: DType) -> u64 {
    elems(shape) * dtype.block_bytes() as u64
}

/// Whether a tensor of a GGUF file keeps full precision whatever the matrices have.
pub(super) fn is_vector(name: &str, shape: &[usize]) -> bool {
    shape.len() < 2 || name.contains("_norm.weight") || name.contains("ffn_gate_inp.weight")
}

/// The metadata that every file begins with.
pub(super) fn general(arch: &str, name: &str, file_type: u32) -> Vec<(String, Pair)> {
    [
        ("general.architecture", Pair::from(arch)),
        ("general.type", "model".into()),
        ("general.name", name.into()),
        ("general.file_type", Pair::U32(file_type)),
        ("general.quantization_version", Pair::U32(2)),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into()
}

fn name_of(config: &Config) -> String {
    let stated = config.get("_name_or_path").or(config.get("model_type")).and_then(Value::as_str);
    format!("synthetic {}", stated.unwrap_or("model"))
}

fn torch_name(number: Number) -> &'static str {
    match number {
        Number::Bf16 => "bfloat16",
        Number::F16 => "float16",
        Number::F32 => "float32",
    }
}

pub(super) fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// A few bytes at a place of their own.
pub(super) struct Constant {
    pub(super) slot: Slot,
    pub(super) bytes: Vec<u8>,
}

impl Work for Constant {
    fn pieces(&self) -> usize {
        1
    }

    fn piece_bytes(&self, _: usize) -> u64 {
        self.bytes.len() as u64
    }

    fn run(&self, _: usize, sink: &Sink) -> Result<(), ExportError> {
        sink.put(self.slot, 0, &self.bytes)
    }
}

/// A tensor of random values.
struct Fill {
    name: String,
    elems: u64,
    slot: Slot,
    seed: u64,
    values: Values,
}

#[derive(Clone)]
enum Values {
    Two(Arc<Table<2>>),
    Four(Arc<Table<4>>),
}

/// Tables made so far, by type, mean and deviation: most tensors share one.
#[derive(Default)]
struct Tables(HashMap<(DType, u64, u64), Values>);

impl Tables {
    fn get(&mut self, dtype: DType, mean: f64, deviation: f64) -> Values {
        let make = || match dtype {
            DType::BF16 => Values::Two(Arc::new(Table::new(mean, deviation, |x| bf16::from_f32(x).to_le_bytes()))),
            DType::F16 => Values::Two(Arc::new(Table::new(mean, deviation, |x| f16::from_f32(x).to_le_bytes()))),
            _ => Values::Four(Arc::new(Table::new(mean, deviation, f32::to_le_bytes))),
        };
        self.0.entry((dtype, mean.to_bits(), deviation.to_bits())).or_insert_with(make).clone()
    }
}

impl Values {
    const fn width(&self) -> u64 {
        match self {
            Self::Two(_) => 2,
            Self::Four(_) => 4,
        }
    }
}

/// Deviation of freshly initialised weights.
const DEVIATION: f64 = 0.02;

impl Fill {
    fn new(name: &str, shape: &[usize], slot: Slot, values: Values, seed: u64) -> Self {
        Self { name: name.into(), elems: elems(shape), slot, seed, values }
    }
}

/// Mean and deviation of a tensor's values, by what its name says it is.
fn distribution(name: &str, norm_offset: f32) -> (f64, f64) {
    let is_own_norm = name.contains("linear_attn.norm") || name.contains("ssm_norm");
    match name {
        _ if is_own_norm => (1.0, DEVIATION),
        _ if name.ends_with("norm.weight") || name.contains("layernorm") => (1.0 - f64::from(norm_offset), DEVIATION),
        // Rates of decay between one and a few tens of tokens, as recurrences begin with.
        _ if name.ends_with("A_log") => (1.0, 0.5),
        _ if name.ends_with("dt_bias") || name.contains("ssm_dt") => (-3.0, 0.5),
        _ => (0.0, DEVIATION),
    }
}

impl Work for Fill {
    fn pieces(&self) -> usize {
        self.elems.div_ceil(PIECE_ELEMS as u64) as usize
    }

    fn piece_bytes(&self, piece: usize) -> u64 {
        let first = (piece * PIECE_ELEMS) as u64;
        (self.elems - first).min(PIECE_ELEMS as u64) * self.values.width()
    }

    fn run(&self, piece: usize, sink: &Sink) -> Result<(), ExportError> {
        let mut out = vec![0; self.piece_bytes(piece) as usize];
        let mut stream = Stream::new(self.seed, &self.name, piece);
        match &self.values {
            Values::Two(table) => table.fill(&mut stream, &mut out),
            Values::Four(table) => table.fill(&mut stream, &mut out),
        }
        sink.put(self.slot, (piece * PIECE_ELEMS) as u64 * self.values.width(), &out)
    }
}
