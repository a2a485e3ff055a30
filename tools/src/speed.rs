//! Speed of a candidate: through the running server, and straight through the engine protocol.

use crate::candidate::Candidate;
use crate::context::Context;
use crate::error::ToolError;
use crate::host::{self, Host};
use crate::judge;
use crate::model;
use crit_core::error::{ErrorKind, Failure};
use crit_core::files::Checkpoint;
use crit_core::model::Model;
use crit_core::plugin::Assembly;
use crit_core::protocol::client::{Client, ConnectOptions};
use crit_core::protocol::spawn::EngineCommand;
use crit_core::protocol::{EngineInfo, EngineStats};
use crit_eval::limits::Limits;
use crit_eval::speed::served::{ServedContext, measure};
use crit_eval::speed::{CeilingInput, DirectOptions, DirectSpeed, ServedOptions, ServedSpeed, direct};
use crit_serve::engine::HostLauncher;
use crit_serve::text::ModelText;
use crit_serve::{BackgroundServer, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Longest time an engine may take to load.
const LOAD: Duration = Duration::from_secs(600);

/// A server with a candidate's engine behind it.
pub struct Served {
    /// The server.
    pub server: BackgroundServer,
    /// What the engine says of itself.
    pub info: EngineInfo,
    launcher: HostLauncher,
}

impl Served {
    /// Starts a server for `model` over `command` on a free loopback port.
    ///
    /// # Errors
    /// The checkpoint has no tokenizer, or the engine does not come up.
    pub fn start(model: &Model, command: EngineCommand, name: &str) -> Result<Self, ToolError> {
        let (text, config) = text(&model.checkpoint, name)?;
        let launcher = HostLauncher::new(command, LOAD);
        let server = BackgroundServer::start(config, Arc::new(text), Arc::new(launcher.clone()))?;
        let info = server.wait_ready()?;
        Ok(Self { server, info, launcher })
    }

    /// A connection to the engine beside the server's own, for its counters.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn counters(&self) -> Result<Client, ToolError> {
        let socket = self.launcher.socket().ok_or_else(|| {
            ToolError::new(ErrorKind::Engine, "the engine behind the server is gone").with_hint("run the tool again")
        })?;
        Ok(Client::connect(&socket, ConnectOptions::new("crit eval"))?)
    }
}

/// Tokenizer, template and configuration to serve a checkpoint with.
///
/// # Errors
/// It has no tokenizer.
pub fn text(checkpoint: &Checkpoint, name: &str) -> Result<(ModelText, ServerConfig), ToolError> {
    let text = ModelText::from_checkpoint(checkpoint)?;
    let config = text.config(name, checkpoint);
    Ok((text, config))
}

/// Name a model is served under: its file or folder.
pub fn model_name(assembly: &Assembly) -> String {
    assembly.model.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// Measures a candidate through the running server, on the suite's prompts.
///
/// # Errors
/// The engine or the server fails, or no prompt fits the context.
pub fn served(
    context: &Context,
    candidate: &Candidate,
    limits: &Limits,
    options: impl FnOnce(&EngineInfo) -> ServedOptions,
) -> Result<(ServedSpeed, EngineInfo), ToolError> {
    let assembly = &candidate.assembly;
    let model = model::open(&assembly.model)?;
    context.report().phase("speed: load");
    let served = Served::start(&model, host::command(context, candidate, "served")?, &model_name(assembly))?;
    let counters = served.counters()?;
    let tokenizer = judge::tokenizer(&assembly.model)?;
    let ceiling = served.info.executor.as_ref().map(|executor| CeilingInput {
        program: &model.program,
        executor,
        limits,
        fastest_allowed: judge::mode(assembly.quality).fastest_allowed(),
    });
    let mut stats = || -> Result<EngineStats, Failure> { Ok(counters.stats()?) };
    let mut known = ServedContext {
        count_tokens: &|text| tokenizer.encode(text, true).map_or(usize::MAX, |ids| ids.len()),
        counts_are_exact: false,
        stats: Some(&mut stats),
        ceiling,
    };
    let options = options(&served.info);
    let speed = measure(&served.server.url(), &options, &mut known, &|line| context.report().phase(line))?;
    let info = served.info.clone();
    served.server.stop()?;
    Ok((speed, info))
}

/// Measures an engine straight through the protocol.
///
/// # Errors
/// The engine fails, or the request does not fit it.
pub fn through_protocol(
    context: &Context,
    assembly: &Assembly,
    command: &EngineCommand,
    limits: &Limits,
    options: &DirectOptions,
) -> Result<(DirectSpeed, EngineInfo), ToolError> {
    let model = model::open(&assembly.model)?;
    context.report().phase("speed: load");
    let mut engine = Host::start(command)?;
    let info = engine.client().info()?;
    let ceiling = info.executor.as_ref().map(|executor| CeilingInput {
        program: &model.program,
        executor,
        limits,
        fastest_allowed: judge::mode(assembly.quality).fastest_allowed(),
    });
    let speed = direct::measure(&mut engine, options, ceiling, &|line| context.report().phase(line))?;
    Ok((speed, info))
}
