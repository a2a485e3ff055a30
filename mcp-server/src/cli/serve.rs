//! `crit serve`: serve a sealed candidate, or any engine of a model.

use super::call;
use super::printer::Printer;
use crit_core::digest::Digest;
use crit_core::error::ErrorKind;
use crit_core::plugin::Assembly;
use crit_core::protocol::spawn::EngineCommand;
use crit_records::Store;
use crit_serve::Server;
use crit_serve::engine::HostLauncher;
use crit_tools::candidate::Candidate;
use crit_tools::{Context, Next, ToolError, host, model, runs, speed};
use serde_json::json;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Longest time an engine may take to load.
const LOAD: Duration = Duration::from_secs(600);

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Digest, the beginning of it, or name; the newest run's sealed candidate if not given.
    #[arg(long, conflicts_with = "model")]
    candidate: Option<String>,
    /// Serve this model with the base engine instead of a candidate.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Serve a candidate although it is not sealed, or its executable is another one.
    #[arg(long)]
    unsealed: bool,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Allow an address that other machines can reach.
    #[arg(long)]
    allow_remote: bool,
    /// Name the model is served under.
    #[arg(long)]
    name: Option<String>,
}

/// What is served.
struct Target {
    assembly: Assembly,
    command: EngineCommand,
    what: String,
}

/// Serves until it is told to stop.
///
/// # Errors
/// There is no such candidate, it is not sealed, or the server cannot run.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    if args.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(ToolError::new(ErrorKind::Usage, "`--name` is empty")
            .with_hint("leave it out, or give the name clients are to ask for"));
    }
    let target = match &args.model {
        Some(path) => of_model(context, path)?,
        None => of_candidate(args, context)?,
    };
    let model = model::open(&target.assembly.model)?;
    let name = args.name.clone().unwrap_or_else(|| speed::model_name(&target.assembly));
    let (text, mut config) = speed::text(&model.checkpoint, &name)?;
    config.host = args.host;
    config.port = args.port;
    config.allow_remote = args.allow_remote;
    let launcher = HostLauncher::new(target.command.clone(), LOAD);
    let runtime = crit_serve::background::runtime()?;
    runtime.block_on(async {
        let server = Server::bind(config, Arc::new(text), Arc::new(launcher)).await?;
        let url = format!("http://{}", server.local_addr());
        let ready = server.readiness();
        let running = server.run(stopped());
        tokio::pin!(running);
        printer.note(&format!("loading {}", target.what));
        // The address is told when it answers: who reads it may ask at once.
        let up = tokio::select! {
            ended = &mut running => return Ok(ended?),
            up = ready.wait() => up.is_ok(),
        };
        if up {
            printer.output(&json!({"url": url, "model": name, "engine": target.what}))?;
            printer.note(&format!("serving {} at {url}/v1; Ctrl-C stops", target.what));
        }
        Ok::<(), ToolError>(running.await?)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Completes when the process is told to stop.
async fn stopped() {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    let term = async {
        match &mut terminate {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = term => {}
    }
}

fn of_model(context: &Context, path: &Path) -> Result<Target, ToolError> {
    let assembly = Assembly::base(call::absolute(path));
    model::open(&assembly.model)?;
    let config = host::write_config(context, &assembly, "serve")?;
    let command = host::own_command(context, &config, host::Executor::Base, "serve")?;
    Ok(Target { assembly, command, what: "the base engine".into() })
}

fn of_candidate(args: &Args, context: &Context) -> Result<Target, ToolError> {
    let workspace = context.workspace()?;
    let store = Store::open(workspace.root())?;
    let (digest, sealed) = chosen(args, &store)?;
    let candidate = Candidate::load(workspace, &digest)?;
    let same = candidate.executable_now(&context.program)? == candidate.parts.executable;
    if !(args.unsealed || sealed && same) {
        let why = if sealed { "its executable is not the one that was sealed" } else { "it is not sealed" };
        return Err(ToolError::new(ErrorKind::Check, format!("candidate {} is not served: {why}", digest.short()))
            .with_hint("seal it, or serve it marked as unsealed with `--unsealed`")
            .with_next(Next::call("seal").with("candidate", digest.to_string())));
    }
    let mark = if sealed && same { "sealed" } else { "UNSEALED" };
    Ok(Target {
        assembly: candidate.assembly.clone(),
        command: host::command(context, &candidate, "serve")?,
        what: format!("{mark} candidate {} ({})", candidate.name, digest.short()),
    })
}

/// The candidate meant, and whether it is sealed.
fn chosen(args: &Args, store: &Store) -> Result<(Digest, bool), ToolError> {
    let runs = store.runs()?;
    let sealed = |digest: &Digest| runs.iter().any(|run| run.sealed.as_ref() == Some(digest));
    match &args.candidate {
        None => match runs.iter().rev().find_map(|run| run.sealed) {
            Some(digest) => Ok((digest, true)),
            None => Err(ToolError::new(ErrorKind::Input, "no run of this workspace is sealed")
                .with_hint("name a candidate with `--candidate` and `--unsealed`, or call `seal`")
                .with_next(Next::call("run_status"))),
        },
        Some(text) => {
            let mut error = None;
            for run in runs.iter().rev() {
                match runs::RunState::read(store, run.clone())?.find(Some(text)) {
                    Ok(one) => {
                        let digest = one.digest.unwrap_or(one.record);
                        return Ok((digest, sealed(&digest)));
                    }
                    Err(found) => error = error.or(Some(found)),
                }
            }
            Err(error.unwrap_or_else(|| ToolError::new(ErrorKind::Input, "there is no run in this workspace yet")))
        }
    }
}
