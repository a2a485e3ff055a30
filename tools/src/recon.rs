//! `recon`: what machine, what model, how far physics allows.

use crate::assembly;
use crate::checkpoint;
use crate::context::Context;
use crate::error::ToolError;
use crate::limits;
use crate::model::{self, ModelFacts};
use crate::next::Next;
use crate::runs;
use crate::tool::{Effect, Runs, Tool};
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::model::Model;
use crit_core::model::program::{Axes, Precision, StateKind};
use crit_core::plugin::QualityMode;
use crit_core::runtime::{ExecutorInfo, MemoryUse};
use crit_eval::ceiling::CeilingModel;
use crit_eval::limits::Limits;
use crit_eval::probe::{Machine, Probe, ProbeOptions};
use crit_eval::quality::Mode;
use crit_kernels::exec::{ExecOptions, Style, needed_bytes};
use crit_records::Draft;
use crit_records::format::{MEDIA_JSON, MeasuredLimit, ReconBody, RunBody};
use crit_records::quantity::{Quantity, ppm};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Bytes of a state element of the base engine.
const STATE_BYTES: usize = 2;
/// Context the memory verdict and the ceilings are for, unless the model's is shorter.
const CONTEXT: usize = 4096;

/// The tool.
pub struct Recon;

/// Arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Model file or folder (safetensors or GGUF). With it, recon begins or continues the run of this checkpoint.
    #[serde(default)]
    pub model: Option<String>,
    /// What the run is to reach, in words.
    #[serde(default)]
    pub goal: Option<String>,
    /// Quality mode: `preserve` (output stays the model's, up to rounding) or `speed` (bounded loss). Default `preserve`.
    #[serde(default)]
    pub quality: Option<String>,
    /// Measure the machine again although there is a probe of this boot.
    #[serde(default)]
    pub probe_again: bool,
}

/// Answer.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Output {
    /// The machine.
    pub machine: MachineFacts,
    /// Its measured limits with all cores; absent when they were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitFacts>,
    /// The checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelFacts>,
    /// Whether it fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryVerdict>,
    /// What the limits allow for it: no engine on this machine can be faster at that precision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<Ceiling>,
    /// The run that was begun or continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What to do next.
    pub next: Next,
}

/// The machine in figures.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineFacts {
    /// Processor.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: u64,
    /// Instruction sets that matter.
    pub instructions: Vec<String>,
    /// Caches, `L2 2 MiB`.
    pub caches: Vec<String>,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory free now.
    pub memory_free_bytes: u64,
    /// Kernel.
    pub kernel: String,
    /// Why there is no GPU target, or what there is.
    pub gpu: String,
}

/// Limits in brief; `crit probe` has all points.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LimitFacts {
    /// Threads used.
    pub threads: u32,
    /// Read bandwidth by memory level, GB/s.
    pub read_gb_s: Vec<Rate>,
    /// Multiply-adds by number format, G operations/s (a multiply-add is two).
    pub arithmetic_gop_s: Vec<Rate>,
    /// Why the machine was not steady; shares measured now are no verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unstable: Vec<String>,
}

/// A limit.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rate {
    /// Of what: `L2`, `DRAM`, `f32`, `int8`.
    pub of: String,
    /// How much.
    pub value: f64,
}

/// Whether the model fits.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryVerdict {
    /// Whether weights and state fit.
    pub fits: bool,
    /// Bytes needed at this context, one sequence.
    pub needed_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Context counted, tokens.
    pub context_tokens: u64,
}

/// A ceiling.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ceiling {
    /// What: `decode` or `prefill`.
    pub of: String,
    /// Positions already in the context.
    pub depth_tokens: u32,
    /// At most, weights as stored in the checkpoint.
    pub tok_s: f64,
    /// At most, at the fastest number format the quality mode allows.
    pub fastest_allowed_tok_s: f64,
    /// What bounds it: memory or arithmetic, and where.
    pub bound: String,
}

impl Tool for Recon {
    const NAME: &'static str = "recon";
    const TITLE: &'static str = "Look at machine and model";
    const DESCRIPTION: &'static str = "Inspect this machine (CPU, GPU, caches, memory bandwidth, FLOPS) and a model \
        checkpoint, and compute the roofline ceilings for LLM decode and prefill speed. The first call for every new \
        task: says what fits in memory and how fast any engine could be here. With `model` it begins the run that all \
        later tools work on and writes engine/engine.json if there is none.";
    const EFFECT: Effect = Effect::Adds { idempotent: true };
    const RUNS: Runs = Runs::Job { deadline_s: 900, inline_without_workspace: true };
    type Params = Params;
    type Output = Output;

    fn inputs(context: &Context, params: &Params) -> Result<Digest, ToolError> {
        // A finished recon answers again as long as its run is open and the machine did not boot.
        let mode = mode(params)?;
        let open = runs::open_run_of(context).map(|run| run.to_string()).unwrap_or_default();
        let boot = crate::jobs::process::ProcessId::current().map(|me| me.boot).unwrap_or_default();
        Ok(Digest::of_parts([open.as_bytes(), boot.as_bytes(), mode.name().as_bytes()]))
    }

    fn run(context: &Context, params: Params) -> Result<Output, ToolError> {
        let mode = mode(&params)?;
        // A wrong path should not wait for the probe.
        let model = params.model.as_deref().map(|path| open(context, path)).transpose()?;
        let probe = match context.try_workspace() {
            Some(_) => Some(limits::measured(context, params.probe_again, &ProbeOptions::quick())?),
            None => None,
        };
        let machine = match &probe {
            Some(probe) => probe.machine.clone(),
            None => Machine::read()?,
        };
        let limits = probe.as_ref().map(|probe| probe.limits(machine.cores));
        let mut output = Output {
            machine: machine_facts(&machine),
            limits: limits.as_ref().map(limit_facts),
            model: None,
            memory: None,
            ceilings: Vec::new(),
            run: None,
            notes: Vec::new(),
            next: Next::call("recon").with("model", "MODEL"),
        };
        if context.try_workspace().is_none() {
            output.notes.push("no workspace: nothing was measured or recorded; start crit with --workspace DIR".into());
        }
        let Some(model) = model else { return Ok(output) };
        describe_model(&mut output, &model, limits.as_ref(), mode)?;
        if let Some(probe) = &probe {
            output.run = Some(record(context, &params, &model, probe, mode)?);
            output.next = Next::call("plan").with("hypothesis", "base engine, no plugins: the starting point");
        }
        Ok(output)
    }
}

fn mode(params: &Params) -> Result<Mode, ToolError> {
    match params.quality.as_deref() {
        None | Some("preserve") => Ok(Mode::Preserve),
        Some("speed") => Ok(Mode::Speed),
        Some(other) => Err(ToolError::new(ErrorKind::Usage, format!("there is no quality mode `{other}`"))
            .with_hint("give `preserve` or `speed`")),
    }
}

fn open(context: &Context, path: &str) -> Result<Model, ToolError> {
    let root = context.try_workspace().map_or(Path::new("."), |workspace| workspace.root());
    model::open(&root.join(path))
}

fn describe_model(output: &mut Output, model: &Model, limits: Option<&Limits>, mode: Mode) -> Result<(), ToolError> {
    let facts = model::facts(model)?;
    let context = CONTEXT.min(model.program.max_context);
    let needed = needed_bytes(model, &ExecOptions::new(Style::Base, context, 1));
    let free = crit_catalog::host::free_bytes().unwrap_or(output.machine.memory_free_bytes);
    output.memory = Some(MemoryVerdict {
        fits: needed <= free,
        needed_bytes: needed,
        free_bytes: free,
        context_tokens: context as u64,
    });
    if needed > free {
        output.notes.push(format!("the model needs {needed} bytes and {free} are free: use a smaller quantisation"));
    }
    if let Some(limits) = limits {
        output.ceilings = ceilings(model, limits, mode, context as u32)?;
    }
    output.model = Some(facts);
    Ok(())
}

/// Ceilings of the model itself, before any engine: weights as the checkpoint stores them, state at 16 bits.
fn ceilings(model: &Model, limits: &Limits, mode: Mode, context: u32) -> Result<Vec<Ceiling>, ToolError> {
    let info = as_stored(model);
    let stored = CeilingModel::new(&model.program, &info, limits)?;
    let fastest = stored.at_fastest(mode.fastest_allowed());
    let deep = (context / 2).max(1);
    let prompt = 512.min(context);
    let row = |of: &str, axes: Axes, tokens: u32, depth_tokens: u32| {
        let (floor, best) = (stored.pass(&axes), fastest.pass(&axes));
        Ceiling {
            of: of.into(),
            depth_tokens,
            tok_s: f64::from(tokens) / floor.floor_s(),
            fastest_allowed_tok_s: f64::from(tokens) / best.floor_s(),
            bound: format!("{:?} ({})", floor.bound(), floor.level.label()).to_lowercase(),
        }
    };
    Ok(vec![
        row("decode", Axes::single(1, 1), 1, 1),
        row("decode", Axes::single(1, deep), 1, deep),
        row("prefill", Axes::single(prompt, 0), prompt, 0),
    ])
}

/// An engine that stores the weights as the checkpoint does and computes in f32.
fn as_stored(model: &Model) -> ExecutorInfo {
    let mut dims: Vec<usize> = Vec::new();
    for state in model.program.blocks.iter().flat_map(|block| &block.states) {
        if let StateKind::Kv { key_dim, value_dim, .. } = &state.kind {
            dims.extend([*key_dim, *value_dim]);
        }
    }
    dims.retain(|dim| *dim > 0);
    dims.sort_unstable();
    dims.dedup();
    ExecutorInfo {
        name: "checkpoint".into(),
        vocab: model.program.vocab,
        block_tokens: 16,
        blocks: 0,
        slots: 1,
        max_context: model.program.max_context,
        max_step_tokens: model.program.max_context,
        max_step_rows: 1,
        slot_bytes: model.program.slot_bytes(),
        drafts: false,
        long_above: model.program.long_above(),
        kv_row_bytes: dims.into_iter().map(|dim| (dim, dim * STATE_BYTES)).collect(),
        stored_bytes: model.checkpoint.tensors().map(|t| (t.name().to_string(), t.stored_bytes() as u64)).collect(),
        precision: (Precision::F32, Precision::F32),
        memory: MemoryUse::default(),
    }
}

fn machine_facts(machine: &Machine) -> MachineFacts {
    let wanted =
        ["avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve"];
    MachineFacts {
        cpu: machine.cpu.clone(),
        cores: machine.cores.into(),
        instructions: machine.flags.iter().filter(|flag| wanted.contains(&flag.as_str())).cloned().collect(),
        caches: machine.caches.iter().map(|c| format!("L{} {} KiB", c.level, c.bytes >> 10)).collect(),
        memory_bytes: machine.memory_bytes,
        memory_free_bytes: machine.memory_free_bytes,
        kernel: machine.kernel.clone(),
        gpu: gpu(),
    }
}

/// Whether a GPU driver is here, and what keeps it from being a target.
fn gpu() -> String {
    let driver = Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/nvidia0").exists();
    match driver {
        true => "an NVIDIA driver is loaded; this build's engines run on the CPU only".into(),
        false => "none: no NVIDIA driver is loaded".into(),
    }
}

fn limit_facts(limits: &Limits) -> LimitFacts {
    let mut read: Vec<Rate> = Vec::new();
    for limit in &limits.read {
        let rate = Rate { of: limit.level.label().into(), value: round(limit.bytes_s / 1e9) };
        match read.iter_mut().find(|known| known.of == rate.of) {
            Some(known) => known.value = known.value.max(rate.value),
            None => read.push(rate),
        }
    }
    let arithmetic = limits
        .arithmetic
        .iter()
        .map(|limit| Rate { of: format!("{:?}", limit.precision).to_lowercase(), value: round(limit.ops_s / 1e9) });
    LimitFacts {
        threads: limits.threads,
        read_gb_s: read,
        arithmetic_gop_s: arithmetic.collect(),
        unstable: limits.unstable.clone(),
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn record(context: &Context, params: &Params, model: &Model, probe: &Probe, mode: Mode) -> Result<String, ToolError> {
    context.report().phase("record");
    let path: PathBuf =
        model.checkpoint.path().canonicalize().unwrap_or_else(|_| model.checkpoint.path().to_path_buf());
    let digest = checkpoint::digest(context, &path)?;
    let store = runs::store(context)?;
    let machine = &probe.machine;
    let wanted = RunBody {
        goal: params.goal.clone().unwrap_or_else(|| format!("the fastest engine that stays within `{}`", mode.name())),
        model: path.display().to_string(),
        checkpoint: digest,
        machine: format!("{} {}, {} cores", std::env::consts::ARCH, machine.cpu, machine.cores),
        metric: runs::metric(),
        decision_rule: runs::DECISION_RULE.into(),
        quality_mode: mode.name().into(),
        budget: Vec::new(),
        seeds_commitment: None,
        policy: None,
        nonce: String::new(),
    };
    let (run, _) = runs::begin(&store, wanted)?;
    let quality = match mode {
        Mode::Preserve => QualityMode::Preserve,
        Mode::Speed => QualityMode::Speed,
    };
    assembly::init(context.workspace()?, &path, quality)?;
    let body = ReconBody {
        cpu: machine.cpu.clone(),
        cores: machine.cores.into(),
        memory_bytes: machine.memory_bytes,
        os: machine.kernel.clone(),
        accelerators: Vec::new(),
        limits: recorded_limits(&probe.limits(machine.cores))?,
    };
    let raw = serde_json::to_vec(probe)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write the probe: {error}")))?;
    let draft = Draft::new(&body)?.about("checkpoint", digest).attach("probe.json", MEDIA_JSON, raw);
    store.append(&run.id, draft)?;
    Ok(run.short)
}

fn recorded_limits(limits: &Limits) -> Result<Vec<MeasuredLimit>, ToolError> {
    let wrong = |error: crit_records::quantity::QuantityError| ToolError::new(ErrorKind::Internal, error.to_string());
    let mut rows = Vec::new();
    for limit in &limits.read {
        rows.push(MeasuredLimit {
            name: "read_bandwidth".into(),
            level: format!("{} at {} bytes", limit.level.label(), limit.working_set_bytes),
            value: Quantity::of(limit.bytes_s / 1e9, 3, "GB/s").map_err(wrong)?,
            spread_ppm: ppm(limit.above_share).map_err(wrong)?,
        });
    }
    for limit in &limits.arithmetic {
        rows.push(MeasuredLimit {
            name: "multiply_add".into(),
            level: format!("{:?}", limit.precision).to_lowercase(),
            value: Quantity::of(limit.ops_s / 1e9, 3, "Gop/s").map_err(wrong)?,
            spread_ppm: ppm(limit.above_share).map_err(wrong)?,
        });
    }
    Ok(rows)
}
