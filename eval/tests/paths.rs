//! An engine broken on one quality path is refused by that path's name: the embedded tiny model over the real protocol,
//! its executor tampered with where one path goes and nowhere else.

mod tiny;

use crit_core::digest::Digest;
use crit_core::runtime::{Executor, Policies, StepBatch};
use crit_eval::link::{EngineLink, ProtocolLink};
use crit_eval::quality::plan::PlanLimits;
use crit_eval::quality::reference::ReferenceKey;
use crit_eval::quality::{Mode, Quality, QualityOptions, Verdict, measure, plan};
use crit_kernels::exec::Style;
use std::path::Path;
use std::sync::OnceLock;
use tiny::{Memory, OneEntry, Tampered};

/// Tokens of each text; decoding at depth starts where no other path gets.
const TOKENS: usize = 100;
const DEPTH: usize = 400;

fn options(cache: &Path, mode: Mode) -> QualityOptions {
    let reference = ReferenceKey { checkpoint: Digest::of(b"tiny"), version: "exact".into() };
    let mut options = QualityOptions::new(mode, cache.to_path_buf(), reference);
    (options.tokens_per_text, options.depth_tokens) = (TOKENS, DEPTH);
    options
}

fn cache() -> &'static Path {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().expect("a folder")).path()
}

fn judged(executor: impl Executor + 'static, broken_cache: bool, mode: Mode) -> Quality {
    let dir = tempfile::tempdir().expect("a folder");
    let mut entry = OneEntry::default();
    entry.broken = broken_cache;
    let policies = Policies { prefix_cache: Some(Box::new(entry)), ..Policies::default() };
    let mut candidate: ProtocolLink = tiny::start(dir.path(), "candidate", executor, policies);
    let mut open = || {
        let reference = tiny::executor(Style::Exact);
        Ok(Box::new(tiny::start(dir.path(), "reference", reference, Policies::default())) as Box<dyn EngineLink>)
    };
    measure(&mut candidate, &mut open, &tiny::texts(), &options(cache(), mode), &|_| {}).expect("it is measured")
}

fn decodes_alone(batch: &StepBatch, seq: usize, _: &mut Memory) -> bool {
    batch.seqs.len() == 1 && batch.seqs[seq].tokens == 1 && batch.seqs[seq].past > 0
}

fn went_back(batch: &StepBatch, seq: usize, memory: &mut Memory) -> bool {
    let seq = &batch.seqs[seq];
    seq.past > 0 && memory.slots.get(&seq.slot).is_some_and(|(end, _)| *end > seq.past)
}

fn reads_beside_one_that_decodes(batch: &StepBatch, seq: usize, _: &mut Memory) -> bool {
    batch.seqs.len() == 2 && batch.seqs[seq].tokens > 1 && batch.seqs.iter().any(|other| other.tokens == 1)
}

fn in_a_used_slot(batch: &StepBatch, seq: usize, memory: &mut Memory) -> bool {
    memory.slots.get(&batch.seqs[seq].slot).is_some_and(|(_, begun)| *begun >= 2)
}

#[test]
fn an_honest_engine_passes_on_every_path() {
    let quality = judged(tiny::executor(Style::Base), false, Mode::Preserve);
    assert_eq!(quality.verdict, Verdict::Pass, "{:?}", quality.reasons);
    let info = tiny::executor(Style::Base);
    let limits = PlanLimits {
        step_tokens: info.info().max_step_tokens as u32,
        batch: info.info().slots as u32,
        context: tiny::CONTEXT as u32,
        block_tokens: info.info().block_tokens as u32,
    };
    assert_eq!(quality.paths.len(), plan::paths(limits).len(), "{:?}", quality.skipped);
    assert!(quality.reference_spread < 1e-6, "{}", quality.reference_spread);
    assert!(quality.identity.expect("measured").complaints().is_empty());
}

#[test]
fn an_engine_broken_on_one_path_is_refused_by_its_name() {
    let block = tiny::executor(Style::Base).info().block_tokens as u32;
    type Case = (&'static str, Tampered, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        ("chunks_7", Tampered::new(|b, s, _| b.seqs.len() == 1 && b.seqs[s].tokens == 7), &["prompt", "decode"]),
        ("chunks_64", Tampered::new(|b, s, _| b.seqs[s].tokens == 64), &["prompt", "decode", "batch"]),
        (
            "chunk_edges",
            Tampered::new(move |b, s, _| b.seqs[s].tokens > 2 && b.seqs[s].past % block == block - 1),
            &["prompt", "decode"],
        ),
        ("kv_cache", Tampered::new(|b, s, _| b.seqs[s].past >= 50 && b.seqs[s].tokens >= 50), &["prompt", "decode"]),
        ("decode", Tampered::new(decodes_alone), &["prompt", "kv_cache", "batch_2"]),
        ("decode_depth", Tampered::new(|b, s, _| b.seqs[s].past >= 300), &["prompt", "decode", "batch"]),
        ("batch_3", Tampered::new(|b, s, _| b.seqs.len() == 3 && b.seqs[s].tokens == 1), &["prompt", "batch_2"]),
        ("mixed", Tampered::new(reads_beside_one_that_decodes), &["prompt", "decode", "batch_2"]),
        ("slot_reuse", Tampered::new(in_a_used_slot), &[]),
        ("verify", Tampered::new(went_back), &["prompt", "decode", "batch_2", "slot_reuse"]),
    ];
    for (path, executor, clean) in cases {
        let quality = judged(executor, false, Mode::Speed);
        refused(&quality, path, clean);
    }
    refused(&judged(tiny::executor(Style::Base), true, Mode::Speed), "prefix_cache", &["prompt", "decode", "verify"]);
}

fn refused(quality: &Quality, path: &str, clean: &[&str]) {
    assert_eq!(quality.verdict, Verdict::Fail, "{path}");
    let named = |name: &str| quality.reasons.iter().any(|reason| reason.starts_with(&format!("{name}: ")));
    assert!(named(path), "{path}: {:?}", quality.reasons);
    for other in clean {
        assert!(!named(other), "{path} is broken, and {other} is blamed: {:?}", quality.reasons);
    }
}
