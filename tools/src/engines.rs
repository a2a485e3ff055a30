//! Executors made in this process, for comparing them: the references and the base engine of a model.
//!
//! Candidates are never run so: they run in a host of their own.

use crate::error::ToolError;
use crate::host;
use crit_catalog::host::{ExecutorKind, build_engine};
use crit_core::error::{ErrorKind, nearest};
use crit_core::json;
use crit_core::model::plain::{PlainExecutor, PlainSizes};
use crit_core::plugin::Assembly;
use crit_core::runtime::Executor;
use crit_kernels::exec::{ExecOptions, Style, build};
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

    /// The executor a host runs for it.
    pub const fn executor(&self) -> host::Executor {
        match self {
            Self::Reference => host::Executor::Exact,
            Self::Plain => host::Executor::Plain,
            Self::Base | Self::Assembly(_) => host::Executor::Base,
        }
    }
}

/// Positions of a KV block.
const BLOCK_TOKENS: usize = 16;

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
    let style = match kind {
        Kind::Reference => Style::Exact,
        Kind::Base => Style::Base,
        Kind::Plain => return plain(path, context),
        Kind::Assembly(config) => return assembled(path, config),
    };
    let model = crate::model::open(path)?;
    let mut options = ExecOptions::new(style, context, 1);
    options.threads = threads.unwrap_or(options.threads);
    Ok(Box::new(build(&model, options)?))
}

fn plain(path: &Path, context: usize) -> Result<Box<dyn Executor>, ToolError> {
    let model = crate::model::open(path)?;
    let blocks = context.div_ceil(BLOCK_TOKENS);
    let sizes = PlainSizes { block_tokens: BLOCK_TOKENS, blocks, slots: 1, max_context: context };
    Ok(Box::new(PlainExecutor::new(model, sizes)))
}

/// The executor of an engine.json, on the model the caller names.
fn assembled(path: &Path, config: &Path) -> Result<Box<dyn Executor>, ToolError> {
    let mut assembly: Assembly = json::from_value(json::parse_file(config)?, &config.display().to_string())?;
    assembly.model = path.into();
    let built = build_engine(&assembly, crate::model::open(path)?, &[], ExecutorKind::Base)?;
    Ok(built.engine.into_executor())
}
