//! What the journeys share: fixtures with their goldens, and driving an executor by hand.
//!
//! A few cases are committed under `fixtures/`; the full sets are read from the folder named by `CRIT_FIXTURES`, and
//! trained models from `CRIT_MODELS`. A test whose set is not there says so with [`skip`].

use crit_core::model::arch;
use crit_core::runtime::{Executor, StepBatch};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The committed fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The folder named by an environment variable, if it is set and there.
pub fn folder_from_env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_dir())
}

/// Says that a test does not run here, and why.
#[expect(clippy::print_stderr, reason = "a test speaks to whoever runs it")]
pub fn skip(test: &str, why: &str) {
    eprintln!("skipped: {test}: {why}");
}

/// A model folder with its golden outputs.
pub struct Case {
    /// Folder name.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
}

impl Case {
    /// The value of a key of its config.
    pub fn config(&self, key: &str) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path.join("config.json")).expect("a case has a config");
        let config: serde_json::Value = serde_json::from_str(&text).expect("a case's config is JSON");
        config.get(key).cloned().unwrap_or_default()
    }

    /// The tolerance its maker states: (largest error in f32, mean error in bf16).
    pub fn guidance(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.path.join("golden.json")).expect("a case has golden.json");
        serde_json::from_str(&text).expect("golden.json is JSON")
    }

    /// Its prompts and what the reference computed from them.
    pub fn goldens(&self) -> Vec<Golden> {
        let bytes = std::fs::read(self.path.join("golden.safetensors")).expect("a case has goldens");
        let file = SafeTensors::deserialize(&bytes).expect("goldens are safetensors");
        let mut names: Vec<&str> = file.names().into_iter().filter(|n| n.contains("input_ids")).collect();
        names.sort_unstable();
        names.iter().map(|name| Golden::read(&file, name)).collect()
    }
}

/// One prompt and what the reference computed from it.
pub struct Golden {
    /// What stands before or behind `input_ids` in the tensor names.
    pub suffix: String,
    /// The prompt.
    pub ids: Vec<u32>,
    /// Logits of the last positions, `[rows][vocab]`.
    pub logits: Vec<Vec<f32>>,
    /// Greedy continuation.
    pub greedy: Vec<u32>,
    /// Distance of the two best logits at each greedy step.
    pub margins: Vec<f32>,
}

impl Golden {
    fn read(file: &SafeTensors<'_>, ids: &str) -> Self {
        let named = |what: &str| file.tensor(&ids.replace("input_ids", what)).expect("goldens come in sets");
        let logits = named("logits");
        let vocab = *logits.shape().last().expect("logits have a width");
        Self {
            suffix: ids.replace("input_ids", ""),
            ids: integers(&named("input_ids")),
            logits: floats(&logits).chunks(vocab).map(<[f32]>::to_vec).collect(),
            greedy: integers(&named("greedy_ids")),
            margins: floats(&named("greedy_margin")),
        }
    }
}

fn integers(view: &safetensors::tensor::TensorView<'_>) -> Vec<u32> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::I64 => {
            bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as u32).collect()
        }
        Dtype::I32 => {
            bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("4 bytes")) as u32).collect()
        }
        other => panic!("ids stored as {other:?}"),
    }
}

fn floats(view: &safetensors::tensor::TensorView<'_>) -> Vec<f32> {
    assert_eq!(view.dtype(), Dtype::F32, "goldens are f32");
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
}

/// Architecture cases: the committed ones, and all of `CRIT_FIXTURES/arch` when it is set.
pub fn arch_cases() -> Vec<Case> {
    let root = folder_from_env("CRIT_FIXTURES").map(|p| p.join("arch")).filter(|p| p.is_dir());
    if root.is_none() {
        skip("the full set of architecture cases", "CRIT_FIXTURES is not set; the committed cases run");
    }
    cases(&root.unwrap_or_else(|| fixtures().join("arch")))
}

/// A committed case of a family: the one of its name, or another of one of its model types.
pub fn committed_case(family: &arch::Family) -> Option<Case> {
    let own = |case: &Case| case.config("model_type").as_str().is_some_and(|t| family.model_types.contains(&t));
    let mut found: Vec<Case> = cases(&fixtures().join("arch")).into_iter().filter(own).collect();
    let at = found.iter().position(|case| case.name == family.name).unwrap_or(0);
    (!found.is_empty()).then(|| found.swap_remove(at))
}

/// Case folders in `root`, sorted.
pub fn cases(root: &Path) -> Vec<Case> {
    let mut out: Vec<Case> = std::fs::read_dir(root)
        .map(|entries| {
            entries.filter_map(Result::ok).map(|e| e.path()).filter(|p| p.join("golden.safetensors").is_file())
        })
        .into_iter()
        .flatten()
        .map(|path| Case { name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path })
        .collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// Whether crit knows the case's family.
pub fn supported(case: &Case) -> bool {
    let kind = case.config("model_type");
    arch::FAMILIES.iter().any(|f| f.model_types.iter().any(|t| Some(*t) == kind.as_str()))
}

/// Drives one sequence through an executor by hand.
pub struct Hand<'a> {
    executor: &'a mut dyn Executor,
    past: u32,
}

impl<'a> Hand<'a> {
    /// A fresh sequence on blocks 0, 1, 2, …
    pub fn new(executor: &'a mut dyn Executor) -> Self {
        Self { executor, past: 0 }
    }

    /// Runs `ids` in chunks and returns the logits of every position.
    pub fn run(&mut self, ids: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let vocab = self.executor.info().vocab;
        let block_tokens = self.executor.info().block_tokens as u32;
        let length = self.past as usize + ids.len();
        let mut out = Vec::new();
        for part in ids.chunks(chunk) {
            let end = self.past + part.len() as u32;
            let blocks = (0..end.div_ceil(block_tokens)).collect();
            let mut batch = StepBatch::default();
            batch.push(part, self.past, blocks, 0, 0..part.len() as u32);
            batch.known(length);
            let mut logits = Vec::new();
            self.executor.step(&batch, &mut logits).expect("the step fits");
            out.extend(logits.chunks(vocab).map(<[f32]>::to_vec));
            self.past = end;
        }
        out
    }
}

/// The last of `rows`, as many as the golden has: committed cases keep those alone of a long input.
pub fn last_rows<'a>(rows: &'a [Vec<f32>], golden: &Golden) -> &'a [Vec<f32>] {
    &rows[rows.len() - golden.logits.len()..]
}

/// Largest and mean absolute difference of two sets of rows.
pub fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> (f32, f32) {
    assert_eq!(a.len(), b.len(), "as many rows");
    let all: Vec<f32> = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).collect();
    let largest = all.iter().copied().fold(0.0, |m: f32, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
    (largest, all.iter().sum::<f32>() / all.len() as f32)
}

/// Index of the largest value, the lowest index of equals.
pub fn argmax(row: &[f32]) -> u32 {
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, v)| if *v > best.1 { (i, *v) } else { best }).0
        as u32
}
