//! `crit kernels`: where kernels can be had, and a bench to write one's own at.
//!
//! A kernel's folder holds `kernel.c` (one function), `kernel.json` (problem, shapes, declared format) and a README. `new`
//! takes the shapes from a checkpoint, `check` asks whether the kernel is right, `bench` how far it is from the best
//! yardstick here and from the machine's floor.

use crate::context::Context;
use crate::error::ToolError;
use crate::limits;
use crate::model;
use crit_core::error::{ErrorKind, nearest};
use crit_eval::clock::MachineClock;
use crit_eval::probe::ProbeOptions;
use crit_eval::workbench::base::BaseLinear;
use crit_eval::workbench::process::ProcessKernel;
use crit_eval::workbench::providers::PROVIDERS;
use crit_eval::workbench::{
    Bench, BenchOptions, CheckOptions, Checked, Declared, Kernel, PROBLEMS, Problem, bench, check, problem,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Operations a check runs a shape with at most; larger shapes are cut.
const MOST_FLOPS: u64 = 8_000_000;
/// Requests at once that shapes are made for: decoding alone, a small batch, a piece of a prompt.
const TOKENS: [usize; 3] = [1, 8, 64];

/// `kernel.json`.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The problem.
    pub problem: String,
    /// Shapes it is for.
    pub shapes: Vec<Vec<usize>>,
    /// What it computes in.
    #[serde(default)]
    pub declared: Declared,
}

/// A new kernel's folder.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Made {
    /// The folder.
    pub folder: String,
    /// Shapes it is for.
    pub shapes: Vec<Vec<usize>>,
    /// What to do next.
    pub next: String,
}

/// A kernel's times, shape by shape.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Benched {
    /// Whether its times count: right, and nothing doubtful.
    pub valid: bool,
    /// What is wrong with it.
    pub complaints: Vec<String>,
    /// Each shape.
    pub shapes: Vec<Bench>,
    /// Yardsticks that are not here, and why.
    pub absent: Vec<String>,
    /// Why the floors are hints only.
    pub unstable: Vec<String>,
}

/// Problems and providers.
pub fn list() -> serde_json::Value {
    let problems: Vec<serde_json::Value> =
        PROBLEMS.iter().map(|p| serde_json::json!({"name": p.name, "what": p.what, "axes": p.axes})).collect();
    serde_json::json!({"problems": problems, "providers": PROVIDERS})
}

/// Makes the folder of a kernel for `op`, with the shapes of the checkpoint at `path` if one is given.
///
/// # Errors
/// There is no such problem, or the folder is there already.
pub fn new(folder: &Path, op: &str, path: Option<&Path>) -> Result<Made, ToolError> {
    let problem = known(op)?;
    if folder.exists() {
        return Err(ToolError::new(ErrorKind::Input, format!("{} is there already", folder.display()))
            .with_hint("name a folder that is not there"));
    }
    let spec = Spec { problem: op.into(), shapes: shapes(problem, path)?, declared: Declared::F32 };
    std::fs::create_dir_all(folder).map_err(|error| ToolError::io("create", folder, &error))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| ToolError::io("write", &path, &error))
    };
    let json = serde_json::to_string_pretty(&spec).unwrap_or_default();
    write("kernel.json", json + "\n")?;
    write("kernel.c", template(problem))?;
    write("README.md", readme(problem, &spec))?;
    let shown = folder.display().to_string();
    let next = format!("edit kernel.c, then `crit kernels check {shown}` and `crit kernels bench {shown}`");
    Ok(Made { folder: shown, shapes: spec.shapes, next })
}

/// Checks the kernel in `folder`.
///
/// # Errors
/// It does not compile or cannot run.
pub fn check_folder(context: &Context, folder: &Path, seed: u64) -> Result<Checked, ToolError> {
    let (spec, problem, mut kernel, _) = open(context, folder)?;
    context.report().phase("kernel: check");
    Ok(check(problem, &mut kernel, &options(&spec, seed))?)
}

/// Times the kernel in `folder` on its shapes.
///
/// # Errors
/// It does not compile or cannot run.
pub fn bench_folder(context: &Context, folder: &Path, calls: usize, seed: u64) -> Result<Benched, ToolError> {
    let (spec, problem, mut kernel, dir) = open(context, folder)?;
    let probe = limits::measured(context, false, &ProbeOptions::quick())?;
    let limits = probe.limits(probe.machine.cores);
    let _alone = context.measure("kernels bench")?;
    context.report().phase("kernel: check");
    let checked = check(problem, &mut kernel, &options(&spec, seed))?;
    let (mut yardsticks, absent) = yardsticks(problem, probe.machine.cores as usize, &dir)?;
    let mut shapes = Vec::new();
    for (i, shape) in spec.shapes.iter().enumerate() {
        context.report().phase(&format!("kernel: {shape:?} ({} of {})", i + 1, spec.shapes.len()));
        let timing = BenchOptions { shape: shape.clone(), declared: spec.declared, calls, flush: true, seed };
        let clock = MachineClock::start();
        shapes.push(bench(problem, &mut kernel, &mut yardsticks, Some(&limits), &clock, &timing)?);
    }
    // Told by time, on a machine whose time is not its own, a doubt is a hint.
    let doubted = shapes.iter().any(|one| !one.doubts.is_empty());
    let valid = checked.complaints.is_empty() && !doubted;
    Ok(Benched { valid, complaints: checked.complaints, shapes, absent, unstable: limits.unstable })
}

fn known(op: &str) -> Result<&'static Problem, ToolError> {
    problem(op).ok_or_else(|| {
        let names = PROBLEMS.iter().map(|problem| problem.name);
        let hint = match nearest(op, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
        };
        ToolError::new(ErrorKind::Usage, format!("there is no problem `{op}`")).with_hint(hint)
    })
}

fn options(spec: &Spec, seed: u64) -> CheckOptions {
    CheckOptions { shapes: spec.shapes.clone(), declared: spec.declared, seed, most_flops: MOST_FLOPS }
}

type Opened = (Spec, &'static Problem, ProcessKernel, PathBuf);

fn open(context: &Context, folder: &Path) -> Result<Opened, ToolError> {
    let path = folder.join("kernel.json");
    let spec: Spec = crit_core::json::from_value(crit_core::json::parse_file(&path)?, &path.display().to_string())?;
    let problem = known(&spec.problem)?;
    let fits =
        |shape: &Vec<usize>| shape.len() == problem.axes.len() && shape.iter().all(|n| (1..=1 << 24).contains(n));
    if spec.shapes.is_empty() || !spec.shapes.iter().all(fits) {
        let axes = problem.axes.join(", ");
        return Err(ToolError::new(ErrorKind::Input, format!("{}: shapes do not fit", path.display()))
            .with_hint(format!("a shape of `{}` is [{axes}], each at least 1", problem.name)));
    }
    let workspace = context.workspace()?;
    workspace.prepare()?;
    let dir = workspace.cache().join("kernels");
    std::fs::create_dir_all(&dir).map_err(|error| ToolError::io("create", &dir, &error))?;
    context.report().phase("kernel: compile");
    let name = folder.file_name().map_or_else(|| "kernel".into(), |name| name.to_string_lossy().into_owned());
    let kernel = ProcessKernel::compile(&name, &folder.join("kernel.c"), &dir)?;
    Ok((spec, problem, kernel, dir))
}

type Yardsticks = (Vec<Box<dyn Kernel>>, Vec<String>);

fn yardsticks(problem: &Problem, threads: usize, dir: &Path) -> Result<Yardsticks, ToolError> {
    let (mut found, mut absent): Yardsticks = (Vec::new(), Vec::new());
    if problem.name != "linear" {
        absent.push(format!("no yardstick computes {}", problem.name));
        return Ok((found, absent));
    }
    found.push(Box::new(BaseLinear::new(threads)?));
    for library in PROVIDERS.iter().filter_map(|provider| provider.bench) {
        match ProcessKernel::library(library, dir) {
            Ok(kernel) => found.push(Box::new(kernel)),
            Err(error) => {
                let hint = crit_core::error::Diagnose::hint(&error).unwrap_or_default();
                absent.push(format!("{error}; {hint}"));
            }
        }
    }
    Ok((found, absent))
}

/// The shapes a checkpoint has of a problem, or some that are common.
fn shapes(problem: &Problem, path: Option<&Path>) -> Result<Vec<Vec<usize>>, ToolError> {
    let mut weights: BTreeSet<(usize, usize)> = BTreeSet::new();
    match path {
        Some(path) => {
            let model = model::open(path)?;
            let all = model.program.blocks.iter().flat_map(|block| &block.weights);
            weights
                .extend(all.filter(|weight| weight.shape.len() == 2).map(|weight| (weight.shape[0], weight.shape[1])));
        }
        None => weights.extend([(1_024, 1_024), (4_096, 1_024)]),
    }
    let widths: BTreeSet<usize> = weights.iter().map(|(_, k)| *k).collect();
    let shapes: Vec<Vec<usize>> = match problem.name {
        "linear" => TOKENS.iter().flat_map(|m| weights.iter().map(move |(n, k)| vec![*m, *n, *k])).collect(),
        "rms_norm" => TOKENS.iter().flat_map(|m| widths.iter().map(move |k| vec![*m, *k])).collect(),
        _ => TOKENS.iter().flat_map(|m| widths.iter().map(move |k| vec![m * k])).collect(),
    };
    Ok(shapes)
}

/// The plainest kernel of a problem.
fn template(problem: &Problem) -> String {
    let body = match problem.name {
        "linear" => {
            "    long m = shape[0], n = shape[1], k = shape[2];\n    const float *x = inputs[0], *w = inputs[1];\n    for (long \
             i = 0; i < m; i++)\n        for (long j = 0; j < n; j++) {\n            float sum = 0;\n            for (long l = \
             0; l < k; l++) sum += x[i * k + l] * w[j * k + l];\n            output[i * n + j] = sum;\n        }\n"
        }
        "rms_norm" => {
            "    long tokens = shape[0], width = shape[1];\n    const float *w = inputs[1];\n    for (long t = 0; t < tokens; \
             t++) {\n        const float *x = inputs[0] + t * width;\n        float sum = 0;\n        for (long i = 0; i < \
             width; i++) sum += x[i] * x[i];\n        float scale = 1.0f / sqrtf(sum / width + 1e-6f);\n        for (long i = \
             0; i < width; i++) output[t * width + i] = x[i] * scale * w[i];\n    }\n"
        }
        _ => {
            "    const float *a = inputs[0], *b = inputs[1];\n    for (long i = 0; i < shape[0]; i++) output[i] = a[i] / (1.0f + \
             expf(-a[i])) * b[i];\n"
        }
    };
    format!(
        "/* {}\n   shape: [{}] */\n#include <math.h>\n\nvoid kernel(const long *shape, const float *const *inputs, float \
         *output) {{\n{body}}}\n",
        problem.what,
        problem.axes.join(", ")
    )
}

fn readme(problem: &Problem, spec: &Spec) -> String {
    format!(
        "# A kernel for `{}`\n\n{}\n\n`kernel.c` holds one function. It is compiled with `cc -O3 -march=native` and runs in a \
         process of its own; it may start threads. `kernel.json` names the {} shapes it is for and what it computes in \
         (`f32`, `f16`, `bf16`): errors are judged by that.\n\n- `crit kernels check DIR`: against an f64 reference on every \
         shape, its neighbours and shapes nobody named; outputs poisoned, bits the same on repeat.\n- `crit kernels bench \
         DIR`: cold and warm, against crit's own product, OpenBLAS and oneDNN where they are installed, and the machine's \
         floor.\n",
        problem.name,
        problem.what,
        spec.shapes.len()
    )
}
