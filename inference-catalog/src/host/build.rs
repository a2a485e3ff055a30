//! From an assembly and an open model to an engine ready to serve. Tools and tests call this in their own process.

use super::{HostError, memory};
use crate::entries::CATALOG;
use crate::registry::{Chosen, choose, known};
use crit_core::model::Model;
use crit_core::model::plain::{PlainExecutor, PlainSizes};
use crit_core::plugin::{Assembly, AssemblyError, ResolvedPlugin, Slot};
use crit_core::protocol::host::Identity;
use crit_core::runtime::{Engine, EngineConfig, EngineError, Executor, Policies};
use crit_kernels::backend::cuda::{self, CudaOptions, Strategy};
use crit_kernels::exec::{self, ExecOptions, KvF16, KvF32, KvFormat, OpPlugin, Style};
use crit_kernels::plugin::{Instance, Plugin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest context an engine gets when its assembly does not say, tokens.
const DEFAULT_CONTEXT: usize = 4096;
/// Positions of a KV block: what a prefix is shared by.
const BLOCK_TOKENS: usize = 16;
/// Most tokens a drafter may propose; its own options say less.
const DRAFT_TOKENS: usize = 64;

/// What runs the steps of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExecutorKind {
    /// The backend's kernels with the assembly's plugins.
    #[default]
    Base,
    /// The exact reference, without plugins: the judge of quality.
    Exact,
    /// The plain reference, without plugins: the judge of kernels.
    Plain,
}

impl ExecutorKind {
    /// `base`, `exact` (or `reference`), `plain`.
    ///
    /// # Errors
    /// Another word.
    pub fn parse(word: &str) -> Result<Self, HostError> {
        match word {
            "base" => Ok(Self::Base),
            "exact" | "reference" => Ok(Self::Exact),
            "plain" => Ok(Self::Plain),
            other => {
                let message = format!("`{other}` is not an executor; there are base, exact, plain, reference");
                Err(HostError::Usage { message })
            }
        }
    }
}

/// An engine of any executor.
pub type Hosted = Engine<Box<dyn Executor>>;

/// An engine, and what it says of itself.
pub struct Built {
    /// The engine.
    pub engine: Hosted,
    /// What it says of itself.
    pub identity: Identity,
}

/// Builds the engine of `assembly` on `model`, its plugins taken from `own` and the catalogue.
///
/// # Errors
/// The assembly breaks a rule, a plugin or the executor refuses, or memory is short.
pub fn build_engine(assembly: &Assembly, model: Model, own: &[Plugin], kind: ExecutorKind) -> Result<Built, HostError> {
    if assembly.engine.is_some() {
        return Err(HostError::Foreign);
    }
    let mut chosen = choose(assembly, &known(own)?)?;
    if kind != ExecutorKind::Base {
        chosen.clear();
    }
    let identity = identity(assembly, &model, &chosen, kind);
    check_applicable(&chosen, &model)?;
    let Parts { policies, kv_format, ops, strategies } = make(&chosen)?;
    if policies.draft_head.is_some() && model.program.draft().is_none() {
        let plugin = chosen.iter().find(|c| c.resolved.manifest.slot == Slot::Drafter);
        return Err(HostError::NotApplicable {
            plugin: plugin.map(|c| c.resolved.manifest.name.clone()).unwrap_or_default(),
            why: "the checkpoint has no drafting head",
        });
    }
    // A head nobody uses takes no cache.
    let model = if policies.draft_head.is_some() { model } else { model.without_draft() };
    let sizes = Sizes::of(assembly, &model)?;
    let executor = match kind {
        ExecutorKind::Plain => plain(model, &sizes)?,
        ExecutorKind::Exact => cpu(Style::Exact, &model, &sizes, Arc::new(KvF32), Vec::new())?,
        ExecutorKind::Base if assembly.backend() == "cuda" => gpu(&model, &sizes, assembly, strategies)?,
        ExecutorKind::Base => {
            let format = kv_format.unwrap_or_else(|| Arc::new(KvF16));
            cpu(Style::Base, &model, &sizes, format, ops)?
        }
    };
    let config = EngineConfig { draft_tokens: DRAFT_TOKENS, ..EngineConfig::default() };
    Ok(Built { engine: Engine::new(executor, policies, config), identity })
}

/// Refuses an engine that this model or machine cannot have, before anything is loaded: a context beyond the model's, or
/// weights and state of more than `free_bytes`. `plugins` are the assembly's own, resolved.
///
/// # Errors
/// It cannot be had, and why.
pub fn check_fit(
    assembly: &Assembly,
    plugins: &[ResolvedPlugin],
    model: &Model,
    free_bytes: Option<u64>,
) -> Result<(), HostError> {
    let sizes = Sizes::of(assembly, model)?;
    // A device says itself what it has when the engine is started on it.
    if assembly.backend() != "cpu" {
        return Ok(());
    }
    let cache = plugins.iter().find(|plugin| plugin.manifest.slot == Slot::KvCache);
    let format: Option<Arc<dyn KvFormat>> = match cache {
        None => Some(Arc::new(KvF16)),
        Some(cache) => match compiled(cache) {
            Some(plugin) => match (plugin.make)(&cache.options)? {
                Instance::KvCache(format) => Some(Arc::from(format)),
                _ => None,
            },
            None => None,
        },
    };
    // How an engine package stores its state is known only once it runs; its weights are known now.
    Ok(sizes.require_memory(model, |dim| format.as_ref().map_or(0, |format| format.row_bytes(dim)), free_bytes)?)
}

/// The plugin of the catalogue that `resolved` names, unless one of the same name took its place.
fn compiled(resolved: &ResolvedPlugin) -> Option<&'static Plugin> {
    CATALOG.iter().find(|plugin| plugin.manifest().is_ok_and(|manifest| manifest == resolved.manifest))
}

/// Refuses plugins that the model's kind of state leaves nothing to do.
fn check_applicable(chosen: &[Chosen], model: &Model) -> Result<(), HostError> {
    let cache = chosen.iter().find(|c| c.resolved.manifest.slot == Slot::PrefixCache);
    match cache {
        Some(cache) if model.program.slot_bytes() > 0 => Err(HostError::NotApplicable {
            plugin: cache.resolved.manifest.name.clone(),
            why: "its recurrent state is not kept in blocks, so a prefix cannot be shared",
        }),
        _ => Ok(()),
    }
}

fn identity(assembly: &Assembly, model: &Model, chosen: &[Chosen], kind: ExecutorKind) -> Identity {
    let name = match kind {
        ExecutorKind::Base => "crit",
        ExecutorKind::Exact => "crit-exact",
        ExecutorKind::Plain => "crit-plain",
    };
    Identity {
        engine: format!("{name} {}", env!("CARGO_PKG_VERSION")),
        arch: model.program.arch.into(),
        target: assembly.target.clone(),
        plugins: chosen
            .iter()
            .map(|c| format!("{}@{}", c.resolved.manifest.name, c.resolved.manifest.version))
            .collect(),
    }
}

/// Plugins made ready, by what takes them.
#[derive(Default)]
struct Parts {
    policies: Policies,
    kv_format: Option<Arc<dyn KvFormat>>,
    /// By name, for errors and times.
    ops: Vec<(String, Box<dyn OpPlugin>)>,
    strategies: Vec<Strategy>,
}

fn make(chosen: &[Chosen]) -> Result<Parts, HostError> {
    let mut parts = Parts::default();
    for Chosen { plugin, resolved } in chosen {
        match (plugin.make)(&resolved.options)? {
            Instance::Drafter(drafter) => parts.policies.drafter = Some(drafter),
            Instance::DraftHead { tokens } => parts.policies.draft_head = Some(tokens),
            Instance::KvCache(format) => parts.kv_format = Some(Arc::from(format)),
            Instance::Cuda(strategy) => parts.strategies.push(strategy),
            Instance::Op(op) => parts.ops.push((resolved.manifest.name.clone(), op)),
            Instance::PrefixCache(cache) => parts.policies.prefix_cache = Some(cache),
        }
    }
    Ok(parts)
}

/// Sizes of an executor.
struct Sizes {
    context: usize,
    blocks: usize,
    slots: usize,
    /// Kernel threads, if not as many as there are cores.
    threads: Option<usize>,
}

impl Sizes {
    fn of(assembly: &Assembly, model: &Model) -> Result<Self, HostError> {
        let longest = model.program.max_context;
        let context = assembly.context.unwrap_or_else(|| longest.min(DEFAULT_CONTEXT));
        if context > longest {
            let why = format!("{context} tokens are more than the model's {longest}");
            return Err(AssemblyError::Field { field: "context", why }.into());
        }
        // check_fields bounds max_batch; the product is checked for a context a checkpoint may lie about.
        let blocks = context.div_ceil(BLOCK_TOKENS).checked_mul(assembly.max_batch).filter(|b| *b < u32::MAX as usize);
        let blocks = blocks.ok_or_else(|| AssemblyError::Field {
            field: "context",
            why: format!("{context} tokens for {} sequences cannot be counted", assembly.max_batch),
        })?;
        Ok(Self { context, blocks, slots: assembly.max_batch, threads: assembly.threads })
    }

    /// Bytes the weights and this much state take, the state at `row_bytes` a key or value row of one head.
    fn needed_bytes(&self, model: &Model, row_bytes: impl Fn(usize) -> usize) -> u64 {
        let weights: u64 = model.checkpoint.tensors().map(|tensor| tensor.stored_bytes() as u64).sum();
        let token = model.program.kv_bytes_per_token(row_bytes) as u64;
        let state = (self.blocks * BLOCK_TOKENS) as u64;
        // Recurrent state is held twice: as it is, and as it was before tokens on trial.
        let slots = model.program.slot_bytes().saturating_mul(2 * self.slots as u64);
        weights.saturating_add(state.saturating_mul(token)).saturating_add(slots)
    }

    fn require_memory(
        &self,
        model: &Model,
        row_bytes: impl Fn(usize) -> usize,
        free_bytes: Option<u64>,
    ) -> Result<(), EngineError> {
        let what = format!("the model with {} sequences of {} tokens", self.slots, self.context);
        memory::require(&what, self.needed_bytes(model, row_bytes), free_bytes)
    }
}

fn gpu(
    model: &Model,
    sizes: &Sizes,
    assembly: &Assembly,
    strategies: Vec<Strategy>,
) -> Result<Box<dyn Executor>, HostError> {
    let model = model.clone().without_draft();
    let options = CudaOptions {
        ordinal: assembly.device().unwrap_or(0),
        blocks: sizes.blocks,
        strategies,
        ..CudaOptions::new(sizes.context, sizes.slots)
    };
    Ok(Box::new(cuda::build(&model, &options)?))
}

fn plain(model: Model, sizes: &Sizes) -> Result<Box<dyn Executor>, HostError> {
    sizes.require_memory(&model, |dim| KvF32.row_bytes(dim), memory::free_bytes())?;
    let plain =
        PlainSizes { block_tokens: BLOCK_TOKENS, blocks: sizes.blocks, slots: sizes.slots, max_context: sizes.context };
    Ok(Box::new(PlainExecutor::new(model, plain)))
}

/// Brings the weights into memory, so that no request waits for the disk; says how far it is at each tenth.
fn load(model: &Model, sizes: &Sizes) {
    let threads = sizes.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let told = AtomicU64::new(0);
    model.load(threads, &|done, total| {
        let tenths = done.saturating_mul(10) / total.max(1);
        if tenths > told.fetch_max(tenths, Ordering::Relaxed) {
            tracing::info!(done_bytes = done, total_bytes = total, "loading weights");
        }
    });
}

fn cpu(
    style: Style,
    model: &Model,
    sizes: &Sizes,
    format: Arc<dyn KvFormat>,
    ops: Vec<(String, Box<dyn OpPlugin>)>,
) -> Result<Box<dyn Executor>, HostError> {
    sizes.require_memory(model, |dim| format.row_bytes(dim), memory::free_bytes())?;
    load(model, sizes);
    let mut options = ExecOptions::new(style, sizes.context, sizes.slots);
    options.threads = sizes.threads.unwrap_or(options.threads);
    options.block_tokens = BLOCK_TOKENS;
    options.blocks = Some(sizes.blocks);
    options.kv_format = Some(format);
    options.ops = ops;
    Ok(Box::new(exec::build(model, options)?))
}
