//! Quantised safetensors: the linear maps of the layers are encoded, everything else is copied as it is stored.

use super::convert::Convert;
use super::encode::{Blocks, Encoder, Fp8Block, Fp8Channel, Int4, Mxfp4, Nvfp4, Part};
use super::error::ExportError;
use super::quantize::{Job, Made};
use super::record::{self, TensorNote};
use super::rows::Rows;
use super::safetensors::{Entry, layout};
use super::scheme::Method;
use super::synth::{Constant, SYNTHETIC_METADATA_KEY, pretty};
use super::write::{Draft, Sink, Slot, Work};
use crate::files::{Container, DType, FileError, StoredTensor};
use serde_json::{Value, json};
use std::path::Path;

/// Bytes of a piece of a copy.
const COPY_BYTES: usize = 4 << 20;

/// A tensor copied as it is stored.
struct Copy {
    tensor: StoredTensor,
    slot: Slot,
}

impl Work for Copy {
    fn pieces(&self) -> usize {
        self.tensor.bytes().len().div_ceil(COPY_BYTES)
    }

    fn piece_bytes(&self, piece: usize) -> u64 {
        (self.tensor.bytes().len() - piece * COPY_BYTES).min(COPY_BYTES) as u64
    }

    fn run(&self, piece: usize, sink: &Sink) -> Result<(), ExportError> {
        let first = piece * COPY_BYTES;
        let bytes = &self.tensor.bytes()[first..first + self.piece_bytes(piece) as usize];
        sink.put(self.slot, first as u64, bytes)
    }
}

/// What becomes of a tensor.
enum Fate {
    Copied,
    Encoded {
        encoder: Box<dyn Encoder>,
        parts: Vec<Part>,
        constants: Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>,
    },
}

enum Content {
    Copy(Copy),
    Matrix { convert: Convert, constants: Vec<Constant> },
}

impl Job<'_> {
    pub(super) fn safetensors(&self, method: Method) -> Result<Made, ExportError> {
        if self.checkpoint.container() == Container::Gguf {
            return Err(ExportError::unsupported(
                "a GGUF file keeps values in an order of its own, which safetensors have no place for",
                "quantise from the model's safetensors checkpoint",
            ));
        }
        let names_as_stored = self.checkpoint.container() == Container::Safetensors;
        // Other containers' own names are the exporter's or have a wrapper's prefix.
        let name_of = |tensor: &StoredTensor| match names_as_stored {
            true => tensor.stored_name().to_string(),
            false => tensor.name().to_string(),
        };
        let tensors: Vec<&StoredTensor> = self.checkpoint.tensors().collect();
        let fates = tensors.iter().map(|tensor| fate(method, tensor)).collect::<Result<Vec<Fate>, _>>()?;
        let mut entries = Vec::new();
        for (tensor, fate) in tensors.iter().zip(&fates) {
            let name = name_of(tensor);
            let module = module(tensor, &name);
            match fate {
                Fate::Copied => entries.push(Entry {
                    name,
                    dtype: tensor.dtype().name(),
                    shape: tensor.shape().to_vec(),
                    bytes: tensor.bytes().len() as u64,
                }),
                Fate::Encoded { encoder, parts, constants } => {
                    let steps = tensor.rows().div_ceil(encoder.row_step());
                    entries.extend(parts.iter().map(|part| Entry {
                        name: format!("{module}{}", part.suffix),
                        dtype: part.dtype,
                        shape: part.shape.clone(),
                        bytes: part_bytes(part, steps),
                    }));
                    entries.extend(constants.iter().map(|(suffix, dtype, shape, bytes)| Entry {
                        name: format!("{module}{suffix}"),
                        dtype,
                        shape: shape.clone(),
                        bytes: bytes.len() as u64,
                    }));
                }
            }
        }
        let mut metadata = vec![("format", "pt".to_string()), ("crit.transform", self.scheme.name.to_string())];
        if self.checkpoint.is_synthetic() {
            metadata.push((SYNTHETIC_METADATA_KEY, "true".into()));
        }
        let layout = layout(&entries, &metadata)?;
        let mut slots = layout.slots.iter().copied();
        let mut contents = Vec::new();
        // Loaders quantise a tied output head, which no tensor stands for, unless it is named.
        let mut kept = vec!["lm_head".to_string()];
        let mut notes = Vec::new();
        for (tensor, fate) in tensors.iter().zip(fates) {
            let mut note = TensorNote { name: name_of(tensor), stored: self.scheme.name.into(), relative_error: 0.0 };
            let mut slot = || slots.next().ok_or(ExportError::Worker);
            contents.push(match fate {
                Fate::Copied => {
                    note.stored = tensor.stored_as().into();
                    let name = module(tensor, &name_of(tensor));
                    if is_matrix(tensor) && !kept.contains(&name) {
                        kept.push(name);
                    }
                    Content::Copy(Copy { tensor: (*tensor).clone(), slot: slot()? })
                }
                Fate::Encoded { encoder, parts, constants } => {
                    let places = parts.iter().map(|_| slot()).collect::<Result<Vec<Slot>, _>>()?;
                    let constants = constants
                        .into_iter()
                        .map(|(.., bytes)| Ok(Constant { slot: slot()?, bytes }))
                        .collect::<Result<Vec<Constant>, ExportError>>()?;
                    let (rows_each, width) = (tensor.rows(), tensor.row_len());
                    let runs = vec![((*tensor).clone(), 0)];
                    let rows = Rows { runs, rows_each, width, head_rows: None, add: 0.0 };
                    Content::Matrix { convert: Convert::new(rows, encoder, &parts, &places), constants }
                }
            });
            notes.push(note);
        }
        let mut work: Vec<Box<dyn Work + '_>> = Vec::new();
        for content in &contents {
            match content {
                Content::Copy(copy) => work.push(Box::new(copy)),
                Content::Matrix { convert, constants } => {
                    work.push(Box::new(convert));
                    work.extend(constants.iter().map(|constant| Box::new(constant) as Box<dyn Work + '_>));
                }
            }
        }
        let draft = Draft::new(self.out)?;
        let manifest = self.write(&draft, &layout.files, &work)?;
        for (note, content) in notes.iter_mut().zip(&contents) {
            if let Content::Matrix { convert, .. } = content {
                note.relative_error = convert.relative_error();
            }
        }
        if let Some(index) = &layout.index {
            draft.write("model.safetensors.index.json", &pretty(index))?;
        }
        self.files_beside(&draft, method, &kept)?;
        draft.write(record::FILE, &record::bytes(self.scheme.name, &manifest, &notes))?;
        draft.keep_folder()?;
        Ok(Made { bytes: layout.files.iter().map(|file| file.len).sum(), tensors: notes })
    }

    /// config.json with the settings, and all that is not weights as it is.
    fn files_beside(&self, draft: &Draft, method: Method, kept: &[String]) -> Result<(), ExportError> {
        let mut config = self.checkpoint.config()?.map().clone();
        for key in ["quantization", "compression_config"] {
            config.remove(key);
        }
        config.insert("quantization_config".into(), settings(method, kept));
        draft.write("config.json", &pretty(&Value::Object(config)))?;
        let path = self.checkpoint.path();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let io = |source| FileError::Io { path: folder.into(), source };
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_beside = [".json", ".jinja", ".model", ".txt"].iter().any(|end| name.ends_with(end));
            let is_made = name == "config.json" || name == record::FILE || name.ends_with(".index.json");
            if is_beside && !is_made && entry.path().is_file() {
                let bytes = std::fs::read(entry.path()).map_err(io)?;
                draft.write(&name, &bytes)?;
            }
        }
        Ok(())
    }
}

/// What the names of a tensor's parts begin with: its module, or its own name where it is no module's weight.
fn module(tensor: &StoredTensor, name: &str) -> String {
    match tensor.name().ends_with(".weight") {
        true => name.rsplit_once('.').map_or(name, |(module, _)| module).into(),
        false => name.strip_suffix("_blocks").unwrap_or(name).into(),
    }
}

fn is_matrix(tensor: &StoredTensor) -> bool {
    tensor.shape().len() == 2 && tensor.name().ends_with(".weight")
}

/// Bytes of a part: the last step may have fewer rows than the others, of which a part with a row for each has less.
fn part_bytes(part: &Part, steps: usize) -> u64 {
    let size = match part.dtype {
        "F32" | "I32" => 4,
        "BF16" => 2,
        _ => 1,
    };
    (part.shape.iter().product::<usize>() * size).min(steps * part.step_bytes) as u64
}

fn fate(method: Method, tensor: &StoredTensor) -> Result<Fate, ExportError> {
    let name = tensor.name();
    let is_linear = is_matrix(tensor) && name.contains(".layers.") && name.ends_with("_proj.weight");
    if is_linear {
        let (rows, width) = (tensor.rows(), tensor.row_len());
        let (encoder, constants) = encoder(method, tensor)?;
        if let Some(parts) = encoder.parts(rows, width) {
            return Ok(Fate::Encoded { encoder, parts, constants });
        }
    }
    if tensor.dtype() != DType::PACKED {
        return Ok(Fate::Copied);
    }
    let encoder = Blocks::plain();
    let mut parts = encoder.parts(tensor.rows(), tensor.row_len()).unwrap_or_default();
    for part in &mut parts {
        part.suffix = if name.ends_with(".weight") { ".weight" } else { "" };
        part.shape = tensor.shape().to_vec();
    }
    Ok(Fate::Encoded { encoder: Box::new(encoder), parts, constants: Vec::new() })
}

type Constants = Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>;

fn encoder(method: Method, tensor: &StoredTensor) -> Result<(Box<dyn Encoder>, Constants), ExportError> {
    let (rows, width) = (tensor.rows(), tensor.row_len());
    Ok(match method {
        Method::Fp8Block => (Box::new(Fp8Block), Vec::new()),
        Method::Fp8Channel => (Box::new(Fp8Channel), Vec::new()),
        Method::Mxfp4 => (Box::new(Mxfp4), Vec::new()),
        Method::Int4 => {
            let shape = [rows, width].iter().flat_map(|size| (*size as i64).to_le_bytes()).collect();
            (Box::new(Int4 { group: INT4_GROUP }), vec![(".weight_shape", "I64", vec![2], shape)])
        }
        Method::Nvfp4 => {
            let encoder = Nvfp4::new(largest(tensor)?);
            let divisor = encoder.divisor.to_le_bytes().to_vec();
            (Box::new(encoder), vec![(".weight_global_scale", "F32", vec![1], divisor)])
        }
    })
}

/// Columns of a group: the settings state one size for all maps, and widths that it does not divide are left as they are.
const INT4_GROUP: usize = 128;

/// The largest magnitude of a tensor, read row by row.
fn largest(tensor: &StoredTensor) -> Result<f32, ExportError> {
    let mut row = vec![0f32; tensor.row_len()];
    let mut found = 0f32;
    for i in 0..tensor.rows() {
        tensor.dequant_rows(i..i + 1, &mut row)?;
        found = row.iter().fold(found, |m, v| m.max(v.abs()));
    }
    Ok(found)
}

/// The `quantization_config` of a method; `kept` are the modules left as they were.
fn settings(method: Method, kept: &[String]) -> Value {
    let weights = |bits: u32, kind: &str, strategy: &str, group: Option<usize>, scale: Option<&str>| {
        json!({"num_bits": bits, "type": kind, "symmetric": true, "strategy": strategy, "group_size": group,
            "dynamic": false, "scale_dtype": scale})
    };
    let compressed = |format: &str, weights: Value, inputs: Value| {
        json!({"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": kept,
            "config_groups": {"group_0": {"targets": ["Linear"], "format": format, "weights": weights,
                "input_activations": inputs, "output_activations": null}}})
    };
    let per_token = json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "token", "dynamic": true});
    match method {
        Method::Fp8Block => json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": kept}),
        Method::Fp8Channel => compressed("float-quantized", weights(8, "float", "channel", None, None), per_token),
        Method::Int4 => compressed("pack-quantized", weights(4, "int", "group", Some(INT4_GROUP), None), Value::Null),
        Method::Mxfp4 => {
            compressed("mxfp4-pack-quantized", weights(4, "float", "group", Some(32), Some("torch.uint8")), Value::Null)
        }
        Method::Nvfp4 => compressed(
            "nvfp4-pack-quantized",
            weights(4, "float", "tensor_group", Some(16), Some("torch.float8_e4m3fn")),
            Value::Null,
        ),
    }
}
