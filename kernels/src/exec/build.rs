//! From a model and options to an executor: memory checked first, then every op lowered, claims of plugins before base.

use super::executor::CpuExecutor;
use super::kv::{KvF16, KvF32, KvFormat, KvStore};
use super::recurrent::RecurrentStore;
use super::step::{Kernel, Lowering, OpPlugin, Values};
use super::{base, common};
use crate::cpu::{Isa, Pool, PoolError};
use crate::exact;
use crit_core::error::{Diagnose, ErrorKind};
use crit_core::model::Model;
use crit_core::model::program::Precision;
use crit_core::model::program::op::NodeView;
use crit_core::runtime::{EngineError, ExecutorInfo, MemoryUse};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which kernels run where no plugin claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// f32 throughout: the judge of quality.
    Exact,
    /// The machine's fast number formats.
    Base,
}

/// Sizes and choices of an executor.
pub struct ExecOptions {
    /// Kernels where no plugin claims.
    pub style: Style,
    /// Threads.
    pub threads: usize,
    /// Instruction sets.
    pub isa: Isa,
    /// Longest sequence.
    pub max_context: usize,
    /// Most sequences.
    pub max_batch: usize,
    /// Positions of a KV block.
    pub block_tokens: usize,
    /// KV blocks; enough for `max_batch` sequences of `max_context` if `None`.
    pub blocks: Option<usize>,
    /// Most tokens of a step.
    pub max_step_tokens: usize,
    /// How KV rows are stored; f16 for base and f32 for exact if `None`.
    pub kv_format: Option<Arc<dyn KvFormat>>,
    /// Op plugins by name.
    pub ops: Vec<(String, Box<dyn OpPlugin>)>,
}

impl ExecOptions {
    /// Options for one model on this machine.
    pub fn new(style: Style, max_context: usize, max_batch: usize) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            style,
            threads,
            isa: Isa::detect(),
            max_context,
            max_batch,
            block_tokens: 16,
            blocks: None,
            max_step_tokens: 512,
            kv_format: None,
            ops: Vec::new(),
        }
    }
}

/// Why there is no executor.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No kernel for an op.
    #[error("op `{op}` has no {style} kernel on the CPU")]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The style.
        style: &'static str,
    },
    /// Two plugins claim one op.
    #[error("plugins `{first}` and `{second}` both claim op {place}")]
    Overlap {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// Block and op.
        place: String,
    },
    /// An op plugin that claims nothing of this model.
    #[error("plugin `{plugin}` claims no op of this model")]
    NothingClaimed {
        /// Its name.
        plugin: String,
    },
    /// Lowering failed, or memory is short.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Threads cannot be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Diagnose for BuildError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoKernel { .. } => ErrorKind::Input,
            Self::Overlap { .. } | Self::NothingClaimed { .. } => ErrorKind::Usage,
            Self::Engine(error) => error.kind(),
            Self::Pool(_) => ErrorKind::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoKernel { .. } => Some("use a model whose ops are all covered (docs/ARCHITECTURE.md)".into()),
            Self::Overlap { second, .. } => Some(format!("leave out `{second}` or the other")),
            Self::NothingClaimed { plugin } => Some(format!("leave out `{plugin}`")),
            Self::Engine(error) => error.hint(),
            Self::Pool(_) => None,
        }
    }
}

/// Builds an executor.
///
/// # Errors
/// An op without a kernel, claims that overlap, memory that does not suffice.
pub fn build(model: &Model, options: ExecOptions) -> Result<CpuExecutor, BuildError> {
    let program = model.program.clone();
    let format = kv_format(&options);
    let (blocks, rows) = sizes(model, &options);
    check_memory(model, &options, format.as_ref(), blocks, rows)?;

    let mut lowered = lower(model, &options, &format)?;
    let mut workspace_bytes = 0;
    for kernel in &mut lowered.kernels {
        workspace_bytes += kernel.prepare(options.max_step_tokens, rows)?;
    }
    let values = Values::new(&program, options.max_step_tokens, rows);
    let kv = KvStore::new(&program, format.clone(), options.block_tokens, blocks);
    let recurrent = RecurrentStore::new(&program, options.max_batch);
    let stored = stored_bytes(model, &lowered.kernels);
    let packs_bytes = lowered.kernels.iter().map(|k| k.packs_bytes()).sum();
    let repacked: u64 = lowered
        .kernels
        .iter()
        .flat_map(|k| k.stored_bytes())
        .filter_map(|(name, _)| model.tensor(&name).map(|t| t.stored_bytes() as u64))
        .sum();
    let memory = MemoryUse {
        weights_bytes: weights_bytes(model).saturating_sub(repacked),
        packs_bytes,
        state_bytes: kv.bytes() + recurrent.bytes(),
        activations_bytes: values.bytes(),
        workspace_bytes,
    };
    let info = ExecutorInfo {
        name: match options.style {
            Style::Exact => "exact".into(),
            Style::Base => "cpu".into(),
        },
        vocab: program.vocab,
        block_tokens: options.block_tokens,
        blocks,
        slots: options.max_batch,
        max_context: options.max_context,
        max_step_tokens: options.max_step_tokens,
        max_step_rows: rows,
        slot_bytes: program.slot_bytes(),
        drafts: program.draft().is_some(),
        long_above: program.long_above(),
        kv_row_bytes: program.kv_row_bytes(|dim| format.row_bytes(dim)),
        stored_bytes: stored,
        precision: lowered.precision,
        memory,
    };
    let times_ns = vec![0; lowered.kernels.len()];
    let pool = Pool::new(options.threads)?;
    let Lowered { kernels, step_kernels, .. } = lowered;
    Ok(CpuExecutor { program, info, kernels, step_kernels, values, kv, recurrent, pool, times_ns, left: 0 })
}

struct Lowered {
    /// Those of the step, then those of the drafting head.
    kernels: Vec<Box<dyn Kernel>>,
    step_kernels: usize,
    precision: (Precision, Precision),
}

fn lower(model: &Model, options: &ExecOptions, format: &Arc<dyn KvFormat>) -> Result<Lowered, BuildError> {
    let program = &model.program;
    let mut kernels = Vec::new();
    let turns = Arc::new(base::TurnTables::default());
    let products = Arc::new(super::Products::default());
    let mut claims = vec![0usize; options.ops.len()];
    let step_kernels = program.nodes(program.step()).count();
    let entries = [Some(program.step()), program.draft()];
    for (at, node) in entries.into_iter().flatten().flat_map(|entry| program.nodes(entry)) {
        let block = &program.blocks[at.place.block];
        let node_lowering = || Lowering {
            turns: turns.clone(),
            products: products.clone(),
            threads: options.threads,
            view: NodeView { program, block, place: at.place, node },
            at,
            weights: node.weights.iter().map(|w| model.weight(at.place, *w)).collect(),
            isa: options.isa,
            kv: format.clone(),
        };
        let mut claimed: Option<(usize, Box<dyn Kernel>)> = None;
        for (i, (name, plugin)) in options.ops.iter().enumerate() {
            let Some(kernel) = plugin.lower(&node_lowering())? else { continue };
            if let Some((first, _)) = &claimed {
                return Err(BuildError::Overlap {
                    first: options.ops[*first].0.clone(),
                    second: name.clone(),
                    place: format!("{} of block `{}`", node.op.name(), block.kind),
                });
            }
            claims[i] += 1;
            claimed = Some((i, kernel));
        }
        kernels.push(match claimed {
            Some((_, kernel)) => kernel,
            None => own_kernel(options.style, node_lowering())?,
        });
    }
    if let Some(i) = claims.iter().position(|n| *n == 0) {
        return Err(BuildError::NothingClaimed { plugin: options.ops[i].0.clone() });
    }
    let own = match options.style {
        Style::Exact => (Precision::F32, Precision::F32),
        Style::Base => base::precision(model, options.isa),
    };
    let precision = options.ops.iter().find_map(|(_, plugin)| plugin.precision()).unwrap_or(own);
    Ok(Lowered { kernels, step_kernels, precision })
}

fn own_kernel(style: Style, node: Lowering<'_>) -> Result<Box<dyn Kernel>, BuildError> {
    let op = node.view.node.op.name();
    let (list, style) = match style {
        Style::Exact => (exact::KERNELS, "exact"),
        Style::Base => (base::KERNELS, "base"),
    };
    let find = |list: &[common::Entry]| list.iter().find(|(name, _)| *name == op).map(|(_, lower)| *lower);
    let lower = find(list).or_else(|| find(common::KERNELS)).ok_or(BuildError::NoKernel { op, style })?;
    Ok(lower(node)?)
}

fn weights_bytes(model: &Model) -> u64 {
    model.checkpoint.tensors().map(|t| t.stored_bytes() as u64).sum()
}

/// Bytes an executor of `model` with `options` takes at most while it is built and after: weights with what is copied of
/// them, state, values and logits. Kernels' own buffers, which are small beside these, are told by [`MemoryUse`] afterwards.
pub fn needed_bytes(model: &Model, options: &ExecOptions) -> u64 {
    let format = kv_format(options);
    let (blocks, rows) = sizes(model, options);
    needed(model, options, format.as_ref(), blocks, rows)
}

fn kv_format(options: &ExecOptions) -> Arc<dyn KvFormat> {
    options.kv_format.clone().unwrap_or_else(|| match options.style {
        Style::Exact => Arc::new(KvF32),
        Style::Base => Arc::new(KvF16),
    })
}

/// Blocks of keys and values, and rows of logits.
fn sizes(model: &Model, options: &ExecOptions) -> (usize, usize) {
    let per_sequence = options.max_context.div_ceil(options.block_tokens);
    let blocks = options.blocks.unwrap_or(per_sequence * options.max_batch);
    // A step never holds more than 256 MiB of logits: quality runs ask for them in chunks.
    (blocks, options.max_step_tokens.min(((256 << 20) / (4 * model.program.vocab.max(1))).max(1)))
}

fn needed(model: &Model, options: &ExecOptions, format: &dyn KvFormat, blocks: usize, rows: usize) -> u64 {
    let program = &model.program;
    let state = KvStore::bytes_needed(program, format, options.block_tokens, blocks)
        + RecurrentStore::bytes_needed(program, options.max_batch);
    let activations: u64 = program
        .values
        .iter()
        .map(|v| {
            let n = match v.axis {
                crit_core::model::program::Axis::Tokens => options.max_step_tokens,
                crit_core::model::program::Axis::Rows => rows,
            };
            (v.width * n * 4) as u64
        })
        .sum();
    weights_bytes(model) + model.copied_bytes() + state + activations
}

fn check_memory(
    model: &Model,
    options: &ExecOptions,
    format: &dyn KvFormat,
    blocks: usize,
    rows: usize,
) -> Result<(), EngineError> {
    let needed_bytes = needed(model, options, format, blocks, rows);
    match free_memory_bytes() {
        Some(free_bytes) if needed_bytes > free_bytes => Err(EngineError::Memory {
            what: format!("the model with {blocks} KV blocks of {} tokens", options.block_tokens),
            needed_bytes,
            free_bytes,
        }),
        _ => Ok(()),
    }
}

/// Memory the system can still give, page cache included; `None` where it does not say.
pub fn free_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn stored_bytes(model: &Model, kernels: &[Box<dyn Kernel>]) -> Vec<(String, u64)> {
    let mut out: BTreeMap<String, u64> = model.stored_bytes().into_iter().collect();
    out.extend(kernels.iter().flat_map(|k| k.stored_bytes()));
    out.into_iter().collect()
}
