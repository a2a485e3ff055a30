//! `crit mcp`: the MCP server.

use crit_tools::{Context, ToolError};
use std::path::Path;
use std::process::ExitCode;

/// Arguments: only the global ones.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Serves until the client hangs up.
///
/// # Errors
/// Standard input or output cannot be used.
pub fn run(context: Context) -> Result<ExitCode, ToolError> {
    crate::mcp::serve(context).map_err(|error| ToolError::io("use", Path::new("standard input and output"), &error))?;
    Ok(ExitCode::SUCCESS)
}
