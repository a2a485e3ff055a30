//! Executors made in this process, for comparing them: the references and the base engine of a model.
//!
//! Candidates are never run so: they run in a host of their own.

use crate::error::ToolError;
use crit_core::error::{ErrorKind, nearest};
use crit_core::model::plain::{PlainExecutor, PlainSizes};
use crit_core::runtime::Executor;
use std::path::{Path, PathBuf};

/// Which executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The exact reference.
    Reference,
    /// The plain reference.
    Plain,
    /// The base engine.
    Base,
    /// The assembly of an engine.json.
    Assembly(PathBuf),
}

impl Kind {
    /// By its name, or a file.
    ///
    /// # Errors
    /// Neither a name nor a file that is there.
    pub fn parse(text: &str) -> Result<Self, ToolError> {
        match text {
            "reference" => Ok(Self::Reference),
            "plain" => Ok(Self::Plain),
            "base" => Ok(Self::Base),
            path if Path::new(path).is_file() => Ok(Self::Assembly(path.into())),
            other => {
                let hint = match nearest(other, ["reference", "plain", "base"]) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "give reference, plain, base, or the path of an engine.json".into(),
                };
                Err(ToolError::new(ErrorKind::Usage, format!("there is no engine `{other}`")).with_hint(hint))
            }
        }
    }
}

/// An executor of the model at `path` with room for one sequence of `context` tokens.
///
/// # Errors
/// The model or the executor cannot be made.
pub fn executor(
    path: &Path,
    kind: &Kind,
    context: usize,
    threads: Option<usize>,
) -> Result<Box<dyn Executor>, ToolError> {
    let model = crate::model::open(path)?;
    let _ = threads;
    let block_tokens = 16;
    let sizes = PlainSizes { block_tokens, blocks: context.div_ceil(block_tokens), slots: 1, max_context: context };
    match kind {
        Kind::Plain => Ok(Box::new(PlainExecutor::new(model, sizes))),
        _ => Err(ToolError::new(ErrorKind::Internal, "not there yet")),
    }
}
