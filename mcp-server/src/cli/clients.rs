//! Coding agents told of crit's MCP server: the files in a workspace that Claude Code and Codex read.
//!
//! What people wrote stays: a file that is there gets crit's entry added, and an entry that is there is left alone.

use crit_core::error::ErrorKind;
use crit_core::json;
use crit_tools::ToolError;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What agents should know, in a file of the name their client reads.
const INSTRUCTIONS: &str = include_str!("../../../docs/agent-instructions.md");

/// Tells Claude Code: `.mcp.json` and `CLAUDE.md`. Returns what was written.
///
/// # Errors
/// A file cannot be written, or `.mcp.json` is no JSON object.
pub fn claude(root: &Path, program: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let path = root.join(".mcp.json");
    let mut settings = if path.exists() { json::parse_file(&path)? } else { json!({}) };
    let shape = || {
        ToolError::new(ErrorKind::Input, format!("{}: `mcpServers` is no object", path.display()))
            .with_hint("correct the file, or move it away")
    };
    let members = settings.as_object_mut().ok_or_else(shape)?;
    let servers = members.entry("mcpServers").or_insert_with(|| json!({})).as_object_mut().ok_or_else(shape)?;
    let mut written = Vec::new();
    if !servers.contains_key("crit") {
        servers.insert("crit".into(), json!({"command": program, "args": arguments(root)}));
        let text = serde_json::to_string_pretty(&settings).unwrap_or_default() + "\n";
        written.push(write(path, &text)?);
    }
    written.extend(instructions(root, "CLAUDE.md")?);
    Ok(written)
}

/// Tells Codex: `.codex/config.toml` and `AGENTS.md`. Returns what was written.
///
/// # Errors
/// A file cannot be read or written.
pub fn codex(root: &Path, program: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let path = root.join(".codex/config.toml");
    let mut text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(ToolError::io("read", &path, &error)),
    };
    let mut written = Vec::new();
    if !text.lines().any(|line| line.trim() == "[mcp_servers.crit]") {
        if !text.is_empty() {
            text.push('\n');
        }
        // JSON strings and lists are TOML's too.
        let (command, arguments) = (json!(program), arguments(root));
        text.push_str(&format!("[mcp_servers.crit]\ncommand = {command}\nargs = {arguments}\n"));
        written.push(write(path, &text)?);
    }
    written.extend(instructions(root, "AGENTS.md")?);
    Ok(written)
}

fn arguments(root: &Path) -> Value {
    json!(["mcp", "--workspace", root])
}

fn instructions(root: &Path, name: &str) -> Result<Option<PathBuf>, ToolError> {
    let path = root.join(name);
    if path.exists() { Ok(None) } else { write(path, INSTRUCTIONS).map(Some) }
}

fn write(path: PathBuf, text: &str) -> Result<PathBuf, ToolError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let made = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    made.map_err(|error| ToolError::io("write", &path, &error))?;
    Ok(path)
}
