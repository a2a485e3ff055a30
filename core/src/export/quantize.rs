//! A checkpoint written again in another form, tensor by tensor.

use super::convert::Convert;
use super::encode::{Blocks, Encoder as _};
use super::error::ExportError;
use super::gguf::{self, Pair, arch};
use super::record::{self, TensorNote};
use super::rows::{Rows, halves_row};
use super::scheme::{Facts, Form, Scheme, matrix_type};
use super::synth::{Constant, SYNTHETIC_METADATA_KEY, general, is_vector};
use super::vocabulary;
use super::write::{self, Draft, Progress, Slot, Work};
use crate::files::{Checkpoint, DType, Manifest};
use crate::json::Config;
use crate::model::Model;
use crate::model::declare::Declared;
use std::path::Path;

/// How to work.
#[derive(Clone, Debug, Default)]
pub struct QuantizeOptions {
    /// Threads; all cores if `None`.
    pub threads: Option<usize>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// Bytes of the files with weights.
    pub bytes: u64,
    /// What became of each tensor.
    pub tensors: Vec<TensorNote>,
}

/// Writes the checkpoint at `model` to `out` as `scheme` says, with a record of what was done beside it.
///
/// # Errors
/// A model that cannot be read or that the scheme cannot hold, something at `out`, or a file that cannot be written.
pub fn quantize(
    model: &Path,
    scheme: &Scheme,
    out: &Path,
    options: &QuantizeOptions,
    progress: &Progress<'_>,
) -> Result<Made, ExportError> {
    let model = Model::open(model)?;
    let threads = options.threads.unwrap_or_else(write::all_cores);
    let job = Job { model: &model, checkpoint: &model.checkpoint, scheme, out, threads, progress };
    match scheme.form {
        Form::Gguf { file_type, base, mixture } => job.gguf(file_type, base, mixture),
        Form::Safetensors(method) => job.safetensors(method),
    }
}

pub(super) struct Job<'a> {
    pub(super) model: &'a Model,
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) scheme: &'a Scheme,
    pub(super) out: &'a Path,
    pub(super) threads: usize,
    pub(super) progress: &'a Progress<'a>,
}

/// A tensor of a GGUF file: its rows, or bytes made here.
enum Content {
    Matrix(Convert),
    Made(Constant),
}

impl Job<'_> {
    fn gguf(&self, file_type: u32, base: DType, mixture: bool) -> Result<Made, ExportError> {
        let config = self.checkpoint.config()?.text()?;
        let arch = arch::find(&config)?;
        let tensors = arch.tensors(&config, self.checkpoint.storage(), &self.used())?;
        let facts = facts(&config, &tensors)?;
        let mut entries = Vec::new();
        for tensor in &tensors {
            let width = tensor.shape.last().copied().unwrap_or(1);
            let dtype = match is_vector(&tensor.name, &tensor.shape) {
                true => DType::F32,
                false => matrix_type(&tensor.name, width, base, mixture, facts),
            };
            let rows: usize = tensor.shape.iter().rev().skip(1).product();
            let bytes = dtype.row_bytes(width).unwrap_or(0) as u64 * rows as u64;
            entries.push(gguf::Entry { name: tensor.name.clone(), dtype, shape: tensor.shape.clone(), bytes });
        }
        let freqs = arch::rope_freqs(&config)?;
        if let Some(freqs) = &freqs {
            let bytes = 4 * freqs.len() as u64;
            entries.push(gguf::Entry {
                name: "rope_freqs.weight".into(),
                dtype: DType::F32,
                shape: vec![freqs.len()],
                bytes,
            });
        }
        let pairs = self.pairs(arch, &config, file_type)?;
        let (file, slots) = gguf::layout("model.gguf", &pairs, &entries)?;
        let mut contents = Vec::new();
        for ((tensor, entry), slot) in tensors.iter().zip(&entries).zip(&slots) {
            contents.push(self.content(tensor, entry.dtype, *slot)?);
        }
        if let (Some(freqs), Some(slot)) = (freqs, slots.last()) {
            let bytes = freqs.iter().flat_map(|value| value.to_le_bytes()).collect();
            contents.push(Content::Made(Constant { slot: *slot, bytes }));
        }
        let work = contents.iter().map(|content| match content {
            Content::Matrix(convert) => Box::new(convert) as Box<dyn Work>,
            Content::Made(constant) => Box::new(constant) as Box<dyn Work>,
        });
        let (len, work) = (file.len, work.collect::<Vec<_>>());
        let draft = Draft::new(self.out)?;
        let manifest = self.write(&draft, &[file], &work)?;
        let notes: Vec<TensorNote> = entries
            .iter()
            .zip(&contents)
            .map(|(entry, content)| TensorNote {
                name: entry.name.clone(),
                stored: entry.dtype.name().into(),
                relative_error: match content {
                    Content::Matrix(convert) => convert.relative_error(),
                    Content::Made(_) => 0.0,
                },
            })
            .collect();
        draft.write(record::FILE, &record::bytes(self.scheme.name, &manifest, &notes))?;
        let stem = self.out.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let beside = self.out.with_file_name(format!("{stem}.{}", record::FILE));
        draft.keep_file("model.gguf", &[(record::FILE, beside)])?;
        Ok(Made { bytes: len, tensors: notes })
    }

    /// Does the work while another thread takes the source's digests.
    pub(super) fn write(
        &self,
        draft: &Draft,
        files: &[write::OutFile],
        work: &[Box<dyn Work + '_>],
    ) -> Result<Manifest, ExportError> {
        std::thread::scope(|scope| {
            let manifest = scope.spawn(|| self.checkpoint.manifest().cloned());
            write::write(draft, files, work, self.threads, self.progress)?;
            draft.sync(files)?;
            Ok(manifest.join().map_err(|_| ExportError::Worker)??)
        })
    }

    /// The tensors that the program reads, in its order, as they are stored.
    pub(super) fn used(&self) -> Vec<Declared> {
        let mut seen = std::collections::HashSet::new();
        let mut out = Vec::new();
        let program = &self.model.program;
        for place in program.entries.iter().flat_map(|entry| &entry.uses) {
            for i in 0..program.blocks[place.block].weights.len() {
                let name = program.stored_name(*place, crate::model::program::WeightId(i as u32));
                if let Some(tensor) = self.checkpoint.tensor(&name)
                    && seen.insert(name.clone())
                {
                    out.push(Declared { name, shape: tensor.shape().to_vec() });
                }
            }
        }
        out
    }

    fn pairs(&self, arch: &arch::Arch, config: &Config, file_type: u32) -> Result<Vec<(String, Pair)>, ExportError> {
        let path = self.checkpoint.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut pairs = general(arch.name, &name, file_type);
        if self.checkpoint.is_synthetic() {
            pairs.push((SYNTHETIC_METADATA_KEY.into(), Pair::Bool(true)));
        }
        let generation = self.checkpoint.generation();
        for (key, value) in [("temp", generation.temperature), ("top_p", generation.top_p), ("min_p", generation.min_p)]
        {
            pairs.extend(value.map(|value| (format!("general.sampling.{key}"), Pair::F32(value as f32))));
        }
        let top_k = generation.top_k.and_then(|k| u32::try_from(k).ok());
        pairs.extend(top_k.map(|k| ("general.sampling.top_k".to_string(), Pair::U32(k))));
        pairs.extend(arch.pairs(config)?);
        match self.checkpoint.metadata() {
            None => pairs.extend(vocabulary::pairs(self.checkpoint, config.positive("vocab_size")?)?),
            Some(metadata) => {
                let keys: Vec<&str> = metadata.keys().filter(|key| key.starts_with("tokenizer.")).collect();
                pairs.extend(keys.iter().filter_map(|key| Some((key.to_string(), Pair::Raw(metadata.raw(key)?)))));
            }
        }
        Ok(pairs)
    }

    fn content(&self, tensor: &arch::Tensor, dtype: DType, slot: Slot) -> Result<Content, ExportError> {
        let find = |name: &str| {
            let found = self.checkpoint.tensor(name).cloned();
            found.ok_or_else(|| ExportError::unsupported(format!("tensor `{name}` is not there"), "report the model"))
        };
        let rows_of_heads = |count: usize| tensor.heads.map(|heads| count / heads.max(1));
        if let ([count], Some(head_rows)) = (&tensor.shape[..], tensor.shape.first().and_then(|n| rows_of_heads(*n))) {
            let values = find(&tensor.runs[0].source)?.to_f32();
            let bytes = (0..*count).flat_map(|i| values[halves_row(i, head_rows)].to_le_bytes()).collect();
            return Ok(Content::Made(Constant { slot, bytes }));
        }
        let (width, leading) = tensor.shape.split_last().map_or((1, &[][..]), |(width, leading)| (*width, leading));
        let count: usize = leading.iter().product();
        let runs = tensor
            .runs
            .iter()
            .map(|run| Ok((find(&run.source)?, run.first)))
            .collect::<Result<Vec<_>, ExportError>>()?;
        let rows = Rows {
            rows_each: count / runs.len().max(1),
            runs,
            width,
            head_rows: rows_of_heads(count),
            add: tensor.add,
        };
        let encoder = Blocks::of(dtype).ok_or_else(|| {
            ExportError::unsupported(format!("type {dtype} cannot be written"), "choose another type")
        })?;
        let parts = encoder.parts(count, width).unwrap_or_default();
        Ok(Content::Matrix(Convert::new(rows, Box::new(encoder), &parts, &[slot])))
    }
}

fn facts(config: &Config, tensors: &[arch::Tensor]) -> Result<Facts, ExportError> {
    let layers = config.positive("num_hidden_layers")?;
    let heads = config.positive("num_attention_heads")?;
    let kv_heads = config.usize_or("num_key_value_heads", heads)?;
    Ok(Facts {
        layers,
        experts: config.usize_or("num_experts", config.usize_or("num_local_experts", 0)?)?,
        tied: !tensors.iter().any(|tensor| tensor.name == "output.weight"),
        is_wide_70b: layers == 80 && heads == 8 * kv_heads,
    })
}
