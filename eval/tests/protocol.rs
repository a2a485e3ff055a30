//! Quality and direct speed over the real engine protocol, against an engine whose every logit depends on every token
//! of the sequence as it lies in its KV blocks.

use crit_core::digest::Digest;
use crit_core::plugin::{PrefixCache, PrefixHit};
use crit_core::protocol::client::{Client, ConnectOptions};
use crit_core::protocol::host::{Identity, serve};
use crit_core::runtime::toy::ToyExecutor;
use crit_core::runtime::{Engine, EngineConfig, Policies};
use crit_eval::link::{EngineLink, ProtocolLink};
use crit_eval::quality::reference::ReferenceKey;
use crit_eval::quality::{Mode, QualityOptions, Text, Verdict, measure, plan};
use crit_eval::rng::Rng;
use crit_eval::speed::direct;
use std::path::{Path, PathBuf};
use std::time::Duration;

const VOCAB: usize = 97;

/// Remembers one sequence.
#[derive(Default)]
struct OneEntry {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
}

impl PrefixCache for OneEntry {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let blocks = self.blocks[..(same / block_tokens).min(self.blocks.len())].to_vec();
        PrefixHit { blocks }
    }

    fn insert(&mut self, tokens: &[u32], blocks: &[u32], _: usize) -> Vec<u32> {
        if !self.blocks.is_empty() {
            return Vec::new();
        }
        (self.tokens, self.blocks) = (tokens.to_vec(), blocks.to_vec());
        blocks.to_vec()
    }

    fn evict(&mut self, _: usize, unused: &dyn Fn(u32) -> bool) -> Vec<u32> {
        if self.blocks.iter().all(|block| unused(*block)) { std::mem::take(&mut self.blocks) } else { Vec::new() }
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

fn start(dir: &Path, name: &str, executor: ToyExecutor) -> ProtocolLink {
    let socket: PathBuf = dir.join(name);
    let at = socket.clone();
    std::thread::spawn(move || {
        let policies = Policies { prefix_cache: Some(Box::new(OneEntry::default())), ..Policies::default() };
        let engine = Engine::new(executor, policies, EngineConfig::default());
        serve(engine, Identity { engine: "toy 1".into(), ..Identity::default() }, &at).unwrap();
    });
    ProtocolLink::new(Client::connect(&socket, ConnectOptions::new("test")).unwrap())
}

fn toy() -> ToyExecutor {
    ToyExecutor::new(VOCAB, 16, 64, 8, 64)
}

#[test]
fn an_engine_equals_itself_on_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(5);
    let text =
        |rng: &mut Rng, n: usize| Text::new(format!("text {n}"), (0..n).map(|_| rng.below(VOCAB) as u32).collect());
    let texts = vec![text(&mut rng, 150), text(&mut rng, 75)];
    let reference = ReferenceKey { checkpoint: Digest::of(b"toy"), version: "toy 1".into() };
    let options = QualityOptions::new(Mode::Preserve, dir.path().join("cache"), reference);
    let mut candidate = start(dir.path(), "candidate", toy());
    let mut open = || Ok(Box::new(start(dir.path(), "reference", toy())) as Box<dyn EngineLink>);
    let quality = measure(&mut candidate, &mut open, &texts, &options, &|_| {}).unwrap();
    assert!(quality.skipped.is_empty(), "{:?}", quality.skipped);
    assert_eq!(quality.paths.len(), plan::paths(plan::PlanLimits::of(&candidate.info().unwrap())).len());
    for path in &quality.paths {
        assert!(path.kld.unwrap().max <= 1e-6 && path.bad_rows == 0, "{path:?}");
    }
}

#[test]
fn an_engine_that_answers_nan_fails_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let texts = vec![Text::new("a", (0..60).map(|i| i % 7).collect())];
    let reference = ReferenceKey { checkpoint: Digest::of(b"toy"), version: "toy 1".into() };
    let options = QualityOptions::new(Mode::Speed, dir.path().join("cache"), reference);
    let mut broken = toy();
    broken.nan_token = Some(3);
    let mut candidate = start(dir.path(), "candidate", broken);
    let mut open = || Ok(Box::new(start(dir.path(), "reference", toy())) as Box<dyn EngineLink>);
    let quality = measure(&mut candidate, &mut open, &texts, &options, &|_| {}).unwrap();
    assert_eq!(quality.verdict, Verdict::Fail);
    assert!(quality.paths[0].bad_rows > 0, "{:?}", quality.reasons);
}

#[test]
fn direct_speed_counts_what_the_engine_ran() {
    let dir = tempfile::tempdir().unwrap();
    let mut executor = toy();
    executor.step_time = Duration::from_millis(4);
    let mut engine = start(dir.path(), "candidate", executor);
    let options = direct::DirectOptions {
        prompt_tokens: 128,
        generate_tokens: 16,
        repeats: 2,
        ..direct::DirectOptions::default()
    };
    let speed = direct::measure(&mut engine, &options, None, &|_| {}).unwrap();
    // Two prompt steps of 64 tokens and sixteen decode steps, each at least 4 ms.
    assert!((1_000.0..=16_000.0).contains(&speed.prefill_tok_s.unwrap()), "{speed:?}");
    assert!((20.0..=250.0).contains(&speed.decode_tok_s.unwrap()), "{speed:?}");
    assert_eq!(speed.tokens_per_pass, Some(1.0));
}
