//! Quality of an engine against the exact reference, each in a process of its own.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::error::ToolError;
use crate::host::{self, Executor, Host};
use crit_core::error::Failure;
use crit_core::files::Checkpoint;
use crit_core::plugin::{Assembly, QualityMode};
use crit_core::text::Tokenizer;
use crit_eval::link::EngineLink;
use crit_eval::quality::reference::ReferenceKey;
use crit_eval::quality::texts::{self, TEXTS};
use crit_eval::quality::wording::{TextSide, text_conduct};
use crit_eval::quality::{Conduct, ConductOptions, Mode, PathKind, Quality, QualityOptions, Text, conduct, measure};
use crit_serve::text::{Conversation, ModelText, Text as _, sampling_defaults};
use std::path::Path;

/// Version of the exact reference: rows kept for another are computed anew.
const REFERENCE: &str = concat!("exact ", env!("CARGO_PKG_VERSION"));

/// The evaluator's word for an assembly's quality mode.
pub const fn mode(quality: QualityMode) -> Mode {
    match quality {
        QualityMode::Preserve => Mode::Preserve,
        QualityMode::Speed => Mode::Speed,
    }
}

/// The suite's texts as token ids of a checkpoint.
///
/// # Errors
/// The checkpoint has no tokenizer.
pub fn texts(model: &Path) -> Result<Vec<Text>, ToolError> {
    let tokenizer = tokenizer(model)?;
    TEXTS.iter().map(|text| Ok(Text::new(text.name, tokenizer.encode(text.content, true)?))).collect()
}

/// The tokenizer of a checkpoint.
///
/// # Errors
/// It has none, or a broken one.
pub fn tokenizer(model: &Path) -> Result<Tokenizer, ToolError> {
    Ok(Tokenizer::from_checkpoint(&Checkpoint::open(model)?)?)
}

/// Why quality cannot be measured on a checkpoint, if it cannot.
///
/// # Errors
/// The checkpoint cannot be read.
pub fn unmeasurable(model: &Path) -> Result<Option<String>, ToolError> {
    let synthetic = Checkpoint::open(model)?.is_synthetic();
    Ok(synthetic.then(|| "quality is not measured: the checkpoint is synthetic, its weights are random".into()))
}

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Most tokens of each text.
    pub tokens_per_text: usize,
    /// Ways to reach a logit; all if `None`.
    pub paths: Option<Vec<PathKind>>,
    /// Sampled runs of the checks of generation, tokens of each, and tokens of the long run; no checks if `None`.
    pub conduct: Option<(u32, u32, u32)>,
    /// Seed of what is drawn after the engine was fixed.
    pub seed: u64,
}

impl Extent {
    /// All paths and checks, `tokens` of each text.
    pub fn full(tokens: usize, seed: u64) -> Self {
        Self { tokens_per_text: tokens, paths: None, conduct: Some((12, 64, 512)), seed }
    }

    /// Rows only, on some paths.
    pub fn rows(tokens: usize, paths: Option<Vec<PathKind>>, seed: u64) -> Self {
        Self { tokens_per_text: tokens, paths, conduct: None, seed }
    }
}

/// Measures the engine behind `engine`, which is of `candidate`.
///
/// # Errors
/// An engine fails, or the reference's rows cannot be kept.
pub fn quality(
    context: &Context,
    candidate: &Candidate,
    engine: &mut dyn EngineLink,
    extent: &Extent,
) -> Result<Quality, ToolError> {
    let assembly = &candidate.assembly;
    let key = ReferenceKey { checkpoint: candidate.parts.checkpoint, version: REFERENCE.into() };
    let cache = context.workspace()?.cache().join("reference");
    let options = QualityOptions {
        tokens_per_text: extent.tokens_per_text,
        paths: extent.paths.clone(),
        seed: extent.seed,
        ..QualityOptions::new(mode(assembly.quality), cache, key)
    };
    let known = texts(&assembly.model)?;
    let secret = secret_text(&assembly.model, extent)?;
    let all: Vec<Text> = known.iter().cloned().chain([secret]).collect();
    let mut open =
        || -> Result<Box<dyn EngineLink>, Failure> { Ok(Box::new(reference(context, assembly).map_err(lower)?)) };
    let progress = |line: &str| context.report().phase(line);
    let quality = measure(engine, &mut open, &all, &options, &progress)?;
    let checks = match extent.conduct {
        None => Vec::new(),
        Some(extents) => {
            let options = conduct_options(&assembly.model, extents, extent.seed)?;
            let mut checks = conduct(engine, &mut open, &known, &options, &progress)?;
            checks.push(text_check(&assembly.model)?);
            checks
        }
    };
    Ok(quality.with_conduct(checks))
}

/// A text drawn after the engine was fixed, about as long as what is scored of the others.
fn secret_text(model: &Path, extent: &Extent) -> Result<Text, ToolError> {
    // Tokens are mostly shorter than six bytes; what is too long is cut.
    let content = texts::secret(extent.seed, extent.tokens_per_text * 6);
    Ok(Text::new("secret", tokenizer(model)?.encode(&content, true)?))
}

fn conduct_options(
    model: &Path,
    (runs, tokens, free_run_tokens): (u32, u32, u32),
    seed: u64,
) -> Result<ConductOptions, ToolError> {
    let checkpoint = Checkpoint::open(model)?;
    let sampling = sampling_defaults(checkpoint.generation());
    let stop_ids = checkpoint.eos_ids().iter().copied().collect();
    Ok(ConductOptions { runs, tokens, free_run_tokens, ..ConductOptions::new(sampling, stop_ids, seed) })
}

/// The texts of the server: what it makes of a message, and of bytes that come in pieces.
fn text_check(model: &Path) -> Result<Conduct, ToolError> {
    let checkpoint = Checkpoint::open(model)?;
    let (served, tokenizer) = (ModelText::from_checkpoint(&checkpoint)?, Tokenizer::from_checkpoint(&checkpoint)?);
    let lower = |error: crit_core::text::TextError| Failure::from(error).message;
    let render = |user: &str| {
        let message = serde_json::json!({"role": "user", "content": user});
        let conversation = Conversation { messages: vec![message], ..Conversation::default() };
        let prompt = served.render(&conversation).map_err(|failure| failure.message)?;
        served.encode(&prompt).map_err(|failure| failure.message)
    };
    let side = TextSide {
        encode: &|text| tokenizer.encode(text, false).map_err(lower),
        render: &render,
        decode: &|ids| {
            let mut decoder = served.decoder();
            let mut text: String = ids.iter().map(|id| decoder.push(*id)).collect();
            text.push_str(&decoder.finish());
            text
        },
        bos: checkpoint.bos_id(),
    };
    Ok(text_conduct(&side))
}

/// The exact reference of an assembly's model, one sequence at a time.
fn reference(context: &Context, assembly: &Assembly) -> Result<Host, ToolError> {
    let judge = Assembly {
        context: assembly.context,
        threads: assembly.threads,
        max_batch: 1,
        ..Assembly::base(assembly.model.clone())
    };
    let config = host::write_config(context, &judge, &format!("reference-{}", std::process::id()))?;
    Host::start(&host::own_command(context, &config, Executor::Exact, "reference")?)
}

fn lower(error: ToolError) -> Failure {
    Failure { kind: error.kind, message: error.message, hint: error.hint }
}
