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
use crit_eval::quality::texts::TEXTS;
use crit_eval::quality::{Mode, PathKind, Quality, QualityOptions, Text, measure};
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
        ..QualityOptions::new(mode(assembly.quality), cache, key)
    };
    let texts = texts(&assembly.model)?;
    let mut open =
        || -> Result<Box<dyn EngineLink>, Failure> { Ok(Box::new(reference(context, assembly).map_err(lower)?)) };
    Ok(measure(engine, &mut open, &texts, &options, &|line| context.report().phase(line))?)
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
