//! Engines of candidates, each in a process of its own, as the evaluator wants them.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::error::ToolError;
use crit_core::error::{ErrorKind, Failure};
use crit_core::plugin::Assembly;
use crit_core::protocol::client::Client;
use crit_core::protocol::spawn::{EngineCommand, EngineProcess};
use crit_core::protocol::{EngineInfo, EngineStats, FinishReason, ScorePlan, Usage};
use crit_eval::link::{EngineLink, Generation, OnRow, OnTokens, ProtocolLink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time an engine may take to load its model.
const READY_WITHIN: Duration = Duration::from_secs(600);

/// A running engine and the connection to it. The process ends when this is dropped.
pub struct Host {
    client: Client,
    link: ProtocolLink,
    process: EngineProcess,
}

impl Host {
    /// Starts `command` and connects.
    ///
    /// # Errors
    /// It does not come up; the error shows the end of its log.
    pub fn start(command: &EngineCommand) -> Result<Self, ToolError> {
        let started = EngineProcess::start(command, "crit", READY_WITHIN);
        let (process, client) = started.map_err(|error| from_host(Failure::from(error)))?;
        Ok(Self { link: ProtocolLink::new(client.clone()), client, process })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl EngineLink for Host {
    fn info(&mut self) -> Result<EngineInfo, Failure> {
        self.link.info()
    }

    fn stats(&mut self) -> Result<EngineStats, Failure> {
        self.link.stats()
    }

    fn generate(&mut self, generation: &Generation, on_tokens: OnTokens<'_>) -> Result<(FinishReason, Usage), Failure> {
        self.link.generate(generation, on_tokens)
    }

    fn score(&mut self, plan: &ScorePlan, on_row: OnRow<'_>) -> Result<Vec<u32>, Failure> {
        self.link.score(plan, on_row)
    }
}

/// A host that refuses to start says why as one line of JSON at the end of its log; that is the better error.
fn from_host(failure: Failure) -> ToolError {
    let told = failure.message.lines().rev().find_map(|line| serde_json::from_str::<Failure>(line.trim()).ok());
    told.unwrap_or(failure).into()
}

/// Which executor a host of crit's own runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The machine's fast kernels, with the assembly's plugins.
    Base,
    /// The exact reference.
    Exact,
    /// The plain reference.
    Plain,
}

/// The command of a candidate's engine, with its log in the workspace.
///
/// # Errors
/// There is no workspace.
pub fn command(context: &Context, candidate: &Candidate, name: &str) -> Result<EngineCommand, ToolError> {
    let mut command = candidate.command(&context.program);
    command.log = log_path(context, name)?;
    Ok(command)
}

/// The command of crit's own host for an assembly written to `config`.
///
/// # Errors
/// There is no workspace.
pub fn own_command(
    context: &Context,
    config: &Path,
    executor: Executor,
    name: &str,
) -> Result<EngineCommand, ToolError> {
    let kind = match executor {
        Executor::Base => "base",
        Executor::Exact => "exact",
        Executor::Plain => "plain",
    };
    Ok(EngineCommand {
        program: context.program.clone(),
        args: vec!["engine-host".into(), "--executor".into(), kind.into()],
        env: Vec::new(),
        dir: None,
        config: Some(config.into()),
        log: log_path(context, name)?,
    })
}

/// Writes `assembly` where a host can read it; returns the path.
///
/// # Errors
/// The workspace cannot be written.
pub fn write_config(context: &Context, assembly: &Assembly, name: &str) -> Result<PathBuf, ToolError> {
    let workspace = context.workspace()?;
    workspace.prepare()?;
    let path = workspace.cache().join(format!("{name}.engine.json"));
    let text = serde_json::to_vec_pretty(assembly)
        .map_err(|error| ToolError::new(ErrorKind::Internal, format!("cannot write an assembly: {error}")))?;
    std::fs::write(&path, text).map_err(|error| ToolError::io("write", &path, &error))?;
    Ok(path)
}

fn log_path(context: &Context, name: &str) -> Result<PathBuf, ToolError> {
    let workspace = context.workspace()?;
    workspace.prepare()?;
    // Two jobs may run engines of the same name at a time.
    Ok(workspace.logs().join(format!("engine-{name}-{}.log", std::process::id())))
}
