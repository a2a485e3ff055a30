//! The embedded tiny model as a real engine behind the real protocol, and executors that are broken in one way each.

#![allow(dead_code, reason = "each test uses a part of it")]

use crit_core::files::Checkpoint;
use crit_core::model::Model;
use crit_core::plugin::{PrefixCache, PrefixHit};
use crit_core::protocol::client::{Client, ConnectOptions};
use crit_core::protocol::host::{Identity, serve};
use crit_core::runtime::{
    Engine, EngineConfig, EngineError, Executor, ExecutorInfo, OpTime, Policies, SeqStep, StepBatch,
};
use crit_core::text::Tokenizer;
use crit_eval::link::ProtocolLink;
use crit_eval::quality::Text;
use crit_eval::quality::texts::TEXTS;
use crit_kernels::exec::{CpuExecutor, ExecOptions, Style, build};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Longest sequence of the engines here.
pub const CONTEXT: usize = 512;

/// The model's folder.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/assets/tiny-qwen3")
}

/// The model.
pub fn model() -> Model {
    Model::open(&folder()).expect("the embedded model opens")
}

/// A text as its token ids.
pub fn encode(name: &str, content: &str) -> Text {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let tokenizer = TOKENIZER.get_or_init(|| {
        let checkpoint = Checkpoint::open(&folder()).expect("the embedded model opens");
        Tokenizer::from_checkpoint(&checkpoint).expect("it has a tokenizer")
    });
    Text::new(name, tokenizer.encode(content, true).expect("it encodes"))
}

/// The suite's texts as its token ids.
pub fn texts() -> Vec<Text> {
    static KNOWN: OnceLock<Vec<Text>> = OnceLock::new();
    KNOWN.get_or_init(|| TEXTS.iter().map(|text| encode(text.name, text.content)).collect()).clone()
}

/// An executor of the model.
pub fn executor(style: Style) -> CpuExecutor {
    let mut options = ExecOptions::new(style, CONTEXT, 6);
    options.threads = 1;
    build(&model(), options).expect("the embedded model lowers")
}

/// Serves `executor` on a thread of this process and connects to it.
pub fn start(dir: &Path, name: &str, executor: impl Executor + 'static, policies: Policies) -> ProtocolLink {
    let socket = dir.join(name);
    let at = socket.clone();
    std::thread::spawn(move || {
        let engine = Engine::new(executor, policies, EngineConfig::default());
        let _ = serve(engine, Identity { engine: "tiny 1".into(), ..Identity::default() }, &at);
    });
    ProtocolLink::new(Client::connect(&socket, ConnectOptions::new("test")).expect("it listens"))
}

/// How an executor is broken: which sequences of a step get another row than they should.
pub type Broken = Box<dyn FnMut(&StepBatch, usize, &mut Memory) -> bool + Send>;

/// What a broken executor remembers of a slot.
#[derive(Default)]
pub struct Memory {
    /// By slot: positions the sequence stood at after its last step, and how often the slot began anew.
    pub slots: HashMap<u32, (u32, u32)>,
}

/// An executor whose rows are wrong where `broken` says so.
pub struct Tampered {
    inner: CpuExecutor,
    broken: Broken,
    memory: Memory,
}

impl Tampered {
    /// A tampered base engine.
    pub fn new(broken: impl FnMut(&StepBatch, usize, &mut Memory) -> bool + Send + 'static) -> Self {
        Self { inner: executor(Style::Base), broken: Box::new(broken), memory: Memory::default() }
    }
}

impl Executor for Tampered {
    fn info(&self) -> &ExecutorInfo {
        self.inner.info()
    }

    fn step(&mut self, batch: &StepBatch, logits: &mut Vec<f32>) -> Result<(), EngineError> {
        self.inner.step(batch, logits)?;
        let vocab = self.inner.info().vocab;
        let wrong: Vec<bool> = (0..batch.seqs.len()).map(|seq| (self.broken)(batch, seq, &mut self.memory)).collect();
        for (row, token) in logits.chunks_exact_mut(vocab).zip(&batch.rows) {
            let of = |seq: &SeqStep| (seq.first..seq.first + seq.tokens).contains(token);
            if batch.seqs.iter().position(of).is_some_and(|seq| wrong[seq]) {
                row.rotate_right(1);
            }
        }
        for seq in &batch.seqs {
            let known = self.memory.slots.entry(seq.slot).or_default();
            *known = (seq.past + seq.tokens, known.1 + u32::from(seq.past == 0));
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        self.inner.copy_block(from, to)
    }

    fn roll_back(&mut self, slot: u32) -> Result<(), EngineError> {
        self.inner.roll_back(slot)
    }

    fn last_step_times(&self) -> Vec<OpTime> {
        self.inner.last_step_times()
    }
}

/// A prefix cache of one sequence; a broken one answers with its first block in every place.
#[derive(Default)]
pub struct OneEntry {
    /// Whether it is broken.
    pub broken: bool,
    tokens: Vec<u32>,
    blocks: Vec<u32>,
}

impl PrefixCache for OneEntry {
    fn lookup(&mut self, tokens: &[u32], block_tokens: usize) -> PrefixHit {
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let mut blocks = self.blocks[..(same / block_tokens).min(self.blocks.len())].to_vec();
        if self.broken && blocks.len() > 1 {
            // In another order they would do no harm: keys carry their positions.
            let first = blocks[0];
            blocks.fill(first);
        }
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
