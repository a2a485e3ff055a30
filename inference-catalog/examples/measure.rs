//! Figures for the entries' READMEs that do not depend on how busy the machine is: quality against the exact reference,
//! bytes, accepted tokens. Run: `measure MODEL TEXT...`. Speed is for `crit ablate`.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use crit_catalog::host::ExecutorKind;
use crit_catalog::{CATALOG, build_engine};
use crit_core::model::Model;
use crit_core::plugin::{Assembly, Slot};
use crit_core::protocol::{Generate, Usage};
use crit_core::runtime::{Event, Executor, StepBatch};
use crit_core::text::Tokenizer;
use crit_kernels::exec::{ExecOptions, Style, build};
use crit_kernels::plugin::{Instance, Plugin, conformance};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Tokens of each text that are scored.
const TOKENS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let path = arguments.next().ok_or("measure MODEL TEXT...")?;
    let model = Model::open(&path)?;
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
    for text in arguments {
        let name = text.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ids = tokenizer.encode(&std::fs::read_to_string(&text)?, true)?;
        let ids = &ids[..ids.len().min(TOKENS)];
        let reference = rows(&model, Style::Exact, None, ids)?;
        println!("{name}: {} tokens", ids.len());
        quality("base", &reference, &rows(&model, Style::Base, None, ids)?);
        for plugin in CATALOG {
            let manifest = plugin.manifest()?;
            match manifest.slot {
                Slot::KvCache | Slot::Op => {
                    quality(&manifest.name, &reference, &rows(&model, Style::Base, Some(plugin), ids)?);
                }
                Slot::Drafter => drafts(&model, &path, &manifest.name, ids)?,
                Slot::PrefixCache => {}
            }
        }
    }
    Ok(())
}

/// Logits of every position, and the bytes of weights and state.
struct Rows {
    logits: Vec<f32>,
    vocab: usize,
    weight_bytes: u64,
    state_bytes: u64,
}

fn rows(model: &Model, style: Style, plugin: Option<&Plugin>, ids: &[u32]) -> Result<Rows, Box<dyn Error>> {
    let mut options = ExecOptions::new(style, TOKENS, 1);
    if let Some(plugin) = plugin {
        match conformance::made(plugin, "{}")? {
            Instance::KvCache(format) => options.kv_format = Some(format.into()),
            Instance::Op(op) => options.ops = vec![(plugin.manifest()?.name, op)],
            Instance::Cuda(_) | Instance::Drafter(_) | Instance::DraftHead { .. } | Instance::PrefixCache(_) => {}
        }
    }
    let mut executor = build(model, options)?;
    let (block, vocab) = (executor.info().block_tokens, executor.info().vocab);
    let (mut logits, mut past) = (Vec::new(), 0);
    for part in ids.chunks(64) {
        let mut batch = StepBatch::default();
        let blocks = (0..(past + part.len()).div_ceil(block) as u32).collect();
        batch.push(part, past as u32, blocks, 0, 0..part.len() as u32);
        let mut step = Vec::new();
        executor.step(&batch, &mut step)?;
        logits.extend(step);
        past += part.len();
    }
    let info = executor.info();
    let weight_bytes = info.stored_bytes.iter().map(|(_, bytes)| bytes).sum();
    Ok(Rows { logits, vocab, weight_bytes, state_bytes: info.memory.state_bytes })
}

/// Mean Kullback-Leibler divergence from the reference, and how often the likeliest token is the same.
fn quality(name: &str, reference: &Rows, found: &Rows) {
    let rows = reference.logits.chunks(reference.vocab).zip(found.logits.chunks(found.vocab));
    let (mut divergence, mut same, mut count) = (0.0, 0, 0);
    for (p, q) in rows {
        let (lp, lq) = (log_probs(p), log_probs(q));
        divergence += lp.iter().zip(&lq).map(|(a, b)| a.exp() * (a - b)).sum::<f64>();
        let top = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
        same += usize::from(top(p) == top(q));
        count += 1;
    }
    println!(
        "  {name}: mean KLD {:.2e} nats, same top token {:.2} %, weights {} bytes, state {} bytes",
        divergence / f64::from(count),
        100.0 * same as f64 / f64::from(count),
        found.weight_bytes,
        found.state_bytes
    );
}

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|v| f64::from(v - max).exp()).sum();
    logits.iter().map(|v| f64::from(v - max) - sum.ln()).collect()
}

/// Tokens a pass gives when the text's first half is continued, greedy and sampled.
fn drafts(model: &Model, path: &Path, name: &str, ids: &[u32]) -> Result<(), Box<dyn Error>> {
    for temperature in [0.0, 0.8] {
        let plugins = serde_json::from_str(&format!(r#"[{{"name": "{name}"}}]"#))?;
        let assembly = Assembly { context: Some(TOKENS), max_batch: 1, plugins, ..Assembly::base(path) };
        let mut engine = build_engine(&assembly, model.clone(), &[], ExecutorKind::Base)?.engine;
        let sampling = crit_core::sampling::SamplingParams { temperature, seed: 1, ..Default::default() };
        let prompt = ids[..ids.len() / 2].to_vec();
        engine.submit(Generate { prompt, sampling, max_tokens: 200, stop_ids: Vec::new(), top_logprobs: None })?;
        let (mut events, mut passes) = (Vec::new(), 0);
        while engine.step_once(&mut events) {
            passes += 1;
        }
        let usage = events.iter().find_map(|e| if let Event::Finished { usage, .. } = e { Some(*usage) } else { None });
        let Usage { generated_tokens, drafted_tokens, accepted_tokens, .. } = usage.unwrap_or_default();
        println!(
            "  {name}, temperature {temperature}: {generated_tokens} tokens in {passes} passes, {accepted_tokens} of \
             {drafted_tokens} drafted tokens accepted"
        );
    }
    Ok(())
}
