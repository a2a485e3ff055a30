//! `crit init`: make a workspace.

use super::printer::Printer;
use super::{call, clients};
use crit_core::plugin::QualityMode;
use crit_tools::{Context, ToolError, assembly, model};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model file or folder; written to engine/engine.json.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Tell Claude Code of crit: .mcp.json and CLAUDE.md.
    #[arg(long)]
    claude: bool,
    /// Tell Codex of crit: .codex/config.toml and AGENTS.md.
    #[arg(long)]
    codex: bool,
}

/// Runs the command. What is there is left alone.
///
/// # Errors
/// The model is none, or the folder cannot be written.
pub fn run(args: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let workspace = context.workspace()?;
    let model = args.model.as_ref().map(|path| call::absolute(path));
    if let Some(path) = &model {
        model::open(path)?;
    }
    workspace.prepare()?;
    std::fs::create_dir_all(workspace.engine())
        .map_err(|error| ToolError::io("create", &workspace.engine(), &error))?;
    let wrote = match &model {
        Some(path) => assembly::init(workspace, path, QualityMode::default())?,
        None => false,
    };
    let mut told = Vec::new();
    if args.claude {
        told.extend(clients::claude(workspace.root(), &context.program)?);
    }
    if args.codex {
        told.extend(clients::codex(workspace.root(), &context.program)?);
    }
    let told: Vec<String> = told.iter().map(|path| workspace.relative(path)).collect();
    let next = match &model {
        Some(path) => json!({"tool": "recon", "arguments": {"model": path.display().to_string()}}),
        None => json!({"tool": "recon", "arguments": {"model": "MODEL"}}),
    };
    printer.output(&json!({
        "workspace": workspace.root().display().to_string(),
        "engine_json": assembly::path(workspace).is_file(),
        "written": wrote,
        "clients": told,
        "next": next,
    }))?;
    Ok(ExitCode::SUCCESS)
}
